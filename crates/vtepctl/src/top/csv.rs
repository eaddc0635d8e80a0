//! The paths and queue pairs of the screen as comma-separated values.

use super::sample::{Figures, Path, QueuePair};
use crate::output::{Table, filled};
use crate::pinned::{RECORD, record, routers};

/// Columns: 12 of paths and queue pairs, and 6 of what headers told.
const COLUMNS: usize = 18;
const FIRST: &str =
    "kind|vtep|uplink|routers|bit/s|queue pairs|vni|source|destination|qp|port|state";

/// One row for each path, and then one for each queue pair, the busiest first. Cells that a kind of
/// row does not have are empty.
pub(super) fn table(figures: &Figures) -> Table<COLUMNS> {
    let mut table = Table::new(filled(FIRST.split('|').chain(RECORD)));
    figures.paths.iter().flatten().for_each(|row| table.row(path(row)));
    figures.queue_pairs.iter().flatten().for_each(|row| table.row(queue_pair(row)));
    table
}

fn path(row: &Path) -> [String; COLUMNS] {
    let cells = [
        "path".to_owned(),
        row.vtep.clone(),
        row.uplink.clone(),
        routers(&row.routers),
        row.bits_per_second.to_string(),
        row.queue_pairs.to_string(),
    ];
    filled(cells.into_iter())
}

fn queue_pair(QueuePair { of: row, bits_per_second }: &QueuePair) -> [String; COLUMNS] {
    let cells = [
        "queue pair".to_owned(),
        row.vtep.clone(),
        row.uplink.clone(),
        routers(&row.routers),
        bits_per_second.to_string(),
        String::new(),
        row.vni.to_string(),
        row.source.clone(),
        row.destination.clone(),
        format!("{:#x}", row.queue_pair),
        row.source_port.to_string(),
        row.state.clone(),
    ];
    filled(cells.into_iter().chain(record(row)))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use api::v1;

    use super::super::fixtures;
    use super::*;

    #[test]
    fn each_path_and_each_queue_pair_has_a_row() {
        let mut sample = fixtures::sample(Instant::now(), 5);
        let values = |sample: &_| {
            let mut out = Vec::new();
            table(&Figures::of(None, sample)).write_csv(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(values(&sample).lines().count(), 1, "nothing is probed");
        let path = v1::Path {
            uplink: "up1".to_owned(),
            kilobytes_per_second: 3,
            queue_pairs: 2,
            ..v1::Path::default()
        };
        let vtep = "10.0.0.2".to_owned();
        sample.paths =
            Some(vec![v1::VtepPaths { vtep, paths: vec![path], ..v1::VtepPaths::default() }]);
        sample.queue_pairs =
            Some(vec![fixtures::queue_pair(17, "up1", 1), fixtures::queue_pair(18, "up2", 2)]);
        let text = values(&sample);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "kind,vtep,uplink,routers,bit_per_s,queue_pairs,vni,source,destination,qp,port,state,gaps,repeats,naks,cnps,marks,figures",
                "path,10.0.0.2,up1,unknown,24000,2,,,,,,,,,,,,",
                "queue pair,10.0.0.2,up2,10.2.1.1,16000,,10,192.168.10.1,192.168.10.3,0x12,50018,pinned,411,0,422,0,433,approx.",
                "queue pair,10.0.0.2,up1,10.2.1.1,8000,,10,192.168.10.1,192.168.10.3,0x11,50017,pinned,411,0,422,0,433,approx.",
            ]
        );
    }
}
