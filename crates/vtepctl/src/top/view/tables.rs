//! The tables of next hops and paths, VNIs, and queue pairs.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Row, StatefulWidget, Table, TableState, Widget};

use super::text::{bar, lines, plain, scaled, wrapped};
use super::{section, wide};
use crate::top::model::Screen;
use crate::top::sample::{Figures, QueuePair, VniRow};

/// Width of a rate such as `12.3 M`, and of its heading.
const BITS: u16 = 6;
const FRAMES: u16 = 8;
/// Width of the shortest and of the longest bar.
const SHORT_BAR: u16 = 4;
const LONG_BAR: u16 = 40;
/// A column for notes that is narrower is left out.
const NOTE: u16 = 10;

/// A row with a bar.
struct Load {
    label: String,
    bits: Option<f64>,
    second: String,
}

/// Why qp-pin's figures are missing.
const NOT_PROBED: &str = "qp-pin places none: paths are not probed (probing.key)";

fn heading(cells: Vec<Text<'static>>) -> Row<'static> {
    Row::new(cells).style(Style::new().add_modifier(Modifier::BOLD))
}

fn right(text: impl Into<String>) -> Text<'static> {
    Text::from(Line::from(text.into()).right_aligned())
}

/// Next hops with their rates, and below them the paths that probes found.
pub(super) fn loads(figures: &Figures, area: Rect, buffer: &mut Buffer) {
    let area = section("Next hops", area, buffer);
    let hops: Vec<Load> = figures
        .next_hops
        .iter()
        .map(|hop| Load {
            label: format!("{} {}", hop.uplink, hop.gateway),
            bits: hop.rate.map(|rate| rate.bits_per_second),
            second: plain(hop.rate.map(|rate| rate.frames_per_second)),
        })
        .collect();
    let paths = figures.paths.iter().flatten().map(|path| Load {
        label: [vec![path.vtep.clone(), path.uplink.clone()], path.routers.clone()]
            .concat()
            .join(" "),
        bits: Some(path.bits_per_second as f64),
        second: path.queue_pairs.to_string(),
    });
    let paths: Vec<Load> = paths.collect();
    if hops.is_empty() {
        Paragraph::new("no VTEP has a next hop").render(area, buffer);
        return;
    }
    let longest = hops.iter().chain(&paths).map(|load| load.label.chars().count()).max();
    let columns = Columns::of(area.width, longest.unwrap_or(0));
    let rest = columns.render(["", "frames/s"], &hops, area, buffer);
    if paths.is_empty() || rest.height < 3 {
        return;
    }
    let rest = section("Paths, by probes", rest, buffer);
    columns.render(["vtep, uplink, routers", "qp"], &paths, rest, buffer);
}

/// Widths of the columns of [`loads`].
struct Columns {
    label: u16,
    bar: u16,
    second: u16,
}

impl Columns {
    fn of(width: u16, longest: usize) -> Self {
        let second = if width < 34 { 0 } else { FRAMES };
        let gaps = if second == 0 { 2 } else { 3 };
        let free = width.saturating_sub(BITS + second + gaps);
        let longest = u16::try_from(longest).unwrap_or(u16::MAX);
        let label = longest.min(free.saturating_sub(SHORT_BAR));
        Self { label, bar: (free - label).min(LONG_BAR), second }
    }

    /// Draws the rows, and returns the area below them.
    fn render(
        &self,
        headings: [&'static str; 2],
        loads: &[Load],
        area: Rect,
        buffer: &mut Buffer,
    ) -> Rect {
        let most = loads.iter().filter_map(|load| load.bits).fold(0.0, f64::max);
        let row = |load: &Load| {
            let share = load.bits.filter(|_| most > 0.0).map_or(0.0, |bits| bits / most);
            let bar = Line::from(bar(share, self.bar.into())).style(Color::Cyan);
            let cells = [
                Text::from(load.label.clone()),
                bar.into(),
                right(plain(load.bits)),
                right(load.second.clone()),
            ];
            Row::new(cells)
        };
        let [first, last] = headings;
        let heading = heading(vec![first.into(), "".into(), right("bit/s"), right(last)]);
        let widths = [self.label, self.bar, BITS, self.second].map(Constraint::Length);
        let height = u16::try_from(loads.len() + 1).unwrap_or(u16::MAX).min(area.height);
        let [shown, rest] = super::split(area, height);
        Widget::render(Table::new(loads.iter().map(row), widths).header(heading), shown, buffer);
        rest
    }
}

/// The widest cell of a column.
fn widest<'a>(cells: impl Iterator<Item = &'a str>) -> u16 {
    u16::try_from(cells.map(|cell| cell.chars().count()).max().unwrap_or(0)).unwrap_or(u16::MAX)
}

/// A VNI's cells, and a note: the rate, or why the VNI stays with the kernel.
fn vni_cells(row: &VniRow) -> [String; 5] {
    let policy = row.policy.clone().unwrap_or_else(|| "-".to_owned());
    let rates = [row.encapsulated, row.decapsulated];
    let bits =
        |rate: Option<crate::top::sample::Rate>| plain(rate.map(|rate| rate.bits_per_second));
    [
        if row.external { "external".to_owned() } else { row.vni.to_string() },
        row.netdev.clone(),
        match row.standalone && row.reason_slug.is_some() {
            true => "none".to_owned(),
            false => row.datapath.clone(),
        },
        row.bins.map_or(policy.clone(), |bins| format!("{policy} ({bins})")),
        match &row.reason_slug {
            Some(slug) => slug.clone(),
            None => rates.map(bits).join(" / "),
        },
    ]
}

const VNI_HEADINGS: [&str; 5] = ["vni", "netdev", "datapath", "policy", "encap / decap bit/s"];

/// Widths of the columns of [`vnis`] without the last.
fn vni_widths(rows: &[[String; 5]]) -> [u16; 4] {
    std::array::from_fn(|column| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(String::as_str);
        widest(cells.chain(VNI_HEADINGS.get(column).copied()))
    })
}

/// Columns that the VNIs need beside other tables, at most half of `width`. With room to spare,
/// the last column is shown too.
pub(super) fn width_of_vnis(screen: &Screen, width: u16) -> u16 {
    let rows: Vec<[String; 5]> = screen.vnis().iter().map(vni_cells).collect();
    let least = vni_widths(&rows).iter().sum::<u16>() + 3;
    let note = widest(rows.iter().map(|row| row[4].as_str()).chain([VNI_HEADINGS[4]])) + 1;
    let all = least + note;
    if all <= width / 2 { all } else { least.min(width / 2) }
}

/// The VNIs, with the selected one.
pub(super) fn vnis(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let area = section("VNIs", area, buffer);
    let rows: Vec<[String; 5]> = screen.vnis().iter().map(vni_cells).collect();
    if rows.is_empty() {
        Paragraph::new("there is no vxlan netdev").render(area, buffer);
        return;
    }
    let widths = vni_widths(&rows);
    let rest = area.width.saturating_sub(widths.iter().sum::<u16>() + 4);
    let shown = if rest < NOTE { 4 } else { 5 };
    let widths = widths.into_iter().chain([rest]).map(Constraint::Length).take(shown);
    let cells = |row: [String; 5]| {
        let [vni, others @ ..] = row;
        let others = others.into_iter().map(Text::from);
        std::iter::once(right(vni)).chain(others).take(shown).collect::<Vec<_>>()
    };
    let header = heading(cells(VNI_HEADINGS.map(str::to_owned)));
    let table = Table::new(rows.into_iter().map(|row| Row::new(cells(row))), widths)
        .header(header)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(screen.selected_index());
    StatefulWidget::render(table, area, buffer, &mut state);
}

/// The queue pairs, the busiest first.
pub(super) fn queue_pairs(figures: &Figures, area: Rect, buffer: &mut Buffer) {
    let title = match &figures.queue_pairs {
        Some(rows) => format!("Queue pairs: {}, the busiest first", rows.len()),
        None => "Queue pairs".to_owned(),
    };
    let area = section(&title, area, buffer);
    let Some(rows) = figures.queue_pairs.as_deref().filter(|rows| !rows.is_empty()) else {
        let text =
            if figures.queue_pairs.is_some() { "qp-pin has placed none" } else { NOT_PROBED };
        Paragraph::new(lines(wrapped(text, area.width.into()))).render(area, buffer);
        return;
    };
    let rows = rows.get(..usize::from(area.height).min(rows.len())).unwrap_or(rows);
    let columns = |QueuePair { of: row, bits_per_second }: &QueuePair| {
        let path = [vec![row.uplink.clone()], row.routers.clone()].concat().join(" ");
        let cells = [
            row.vni.to_string(),
            row.source.clone(),
            row.destination.clone(),
            format!("{:#x}", row.queue_pair),
            scaled(*bits_per_second as f64),
            row.psn_gaps.to_string(),
            row.naks.to_string(),
            row.ecn_marks.to_string(),
            row.state.clone(),
            path,
        ];
        wanted(cells, area.width)
    };
    let headings =
        ["vni", "source", "destination", "qp", "bit/s", "gaps", "naks", "marks", "state", "path"];
    let headings = wanted(headings.map(str::to_owned), area.width);
    let rows: Vec<Vec<String>> = rows.iter().map(columns).collect();
    let last = headings.len().saturating_sub(1);
    let width = |column: usize| {
        let all = std::iter::once(&headings).chain(&rows);
        widest(all.filter_map(|row| row.get(column)).map(String::as_str))
    };
    let widths = (0..headings.len()).map(|column| match column == last {
        true => Constraint::Fill(1),
        false => Constraint::Length(width(column)),
    });
    let numbers = match area.width {
        COUNTED.. => 4..8,
        width if wide(width) => 4..5,
        _ => 3..4,
    };
    let cells = |row: Vec<String>| {
        let cell = |(column, text): (usize, String)| match column == 0 || numbers.contains(&column)
        {
            true => right(text),
            false => Text::from(text),
        };
        row.into_iter().enumerate().map(cell).collect::<Vec<_>>()
    };
    let header = heading(cells(headings.clone()));
    let widths: Vec<Constraint> = widths.collect();
    let table = Table::new(rows.into_iter().map(|row| Row::new(cells(row))), widths);
    Widget::render(table.header(header), area, buffer);
}

/// The width from which on queue pairs have their counts.
const COUNTED: u16 = 95;

/// The cells of a queue pair for which there is room: without counts, and then without source and
/// state.
fn wanted(cells: [String; 10], width: u16) -> Vec<String> {
    let left_out: &[usize] = match width {
        COUNTED.. => &[],
        _ if wide(width) => &[5, 6, 7],
        _ => &[1, 5, 6, 7, 8],
    };
    let kept = cells.into_iter().enumerate().filter(|(column, _)| !left_out.contains(column));
    kept.map(|(_, cell)| cell).collect()
}
