//! What of links changes seldom: whether they are up, and the properties and losses of circuits.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::Value;

use crate::interfaces::Circuits;
use crate::model::Fabric;

/// The last answers about all links.
#[derive(Default)]
pub(crate) struct Slow {
    /// Whether each interface is up and has a carrier, by its number.
    carriers: Vec<bool>,
    /// The properties of circuits by name.
    pub(crate) circuits: Circuits,
    /// The frames that each direction of a circuit loses in a second, by the name of the circuit.
    pub(crate) lost: BTreeMap<String, [u64; 2]>,
    /// When the circuits were asked last.
    asked: Option<Instant>,
}

impl Slow {
    /// Whether all these interfaces are up.
    pub(crate) fn is_up(&self, interfaces: &[usize]) -> bool {
        interfaces.iter().all(|number| self.carriers.get(*number) == Some(&true))
    }

    /// Takes what was read now. Returns the links that went down or up, by node and as text;
    /// `interfaces` are those of each link of the fabric.
    pub(crate) fn take<'a>(
        &mut self,
        fabric: &Fabric,
        interfaces: impl Iterator<Item = &'a [usize]>,
        carriers: Option<Vec<bool>>,
        circuits: Option<Circuits>,
    ) -> Vec<(String, String)> {
        if let Some(circuits) = circuits {
            self.count(&circuits);
            self.circuits = circuits;
        }
        let Some(carriers) = carriers else { return Vec::new() };
        let now = Self { carriers, ..Self::default() };
        let mut changed = Vec::new();
        for (link, numbers) in fabric.links.iter().zip(interfaces) {
            let up = now.is_up(numbers);
            if !self.carriers.is_empty() && up != self.is_up(numbers) {
                let node = link.a.split(':').next().unwrap_or_default().to_owned();
                let is = if up { "up again" } else { "down" };
                changed.push((node, format!("the link {} to {} is {is}", link.a, link.b)));
            }
        }
        self.carriers = now.carriers;
        changed
    }

    /// What circuits have lost since they were asked before.
    fn count(&mut self, circuits: &Circuits) {
        let lost = |both: &[Value; 2]| {
            both.each_ref().map(|way| way.get("lost_frames").and_then(Value::as_u64))
        };
        let seconds = self.asked.replace(Instant::now()).map(|asked| asked.elapsed().as_secs_f64());
        self.lost.clear();
        for (name, both) in circuits {
            let (now, before) = (lost(both), self.circuits.get(name).map(lost));
            let rate = |at: usize| {
                let more = now.get(at).copied()??.checked_sub(before?.get(at).copied()??)?;
                Some((more as f64 / seconds?.max(0.1)).round() as u64)
            };
            self.lost.insert(name.clone(), [0, 1].map(|at| rate(at).unwrap_or_default()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Link;
    use serde_json::json;

    #[test]
    fn links_that_go_down_are_told_and_what_circuits_lose_is_counted() {
        let link = Link {
            a: "leaf1:up1".into(),
            b: "spine1:dn1".into(),
            circuit: Some("wan a1:b1".into()),
            interfaces: Vec::new(),
        };
        let fabric = Fabric { links: vec![link], ..Fabric::default() };
        let mut slow = Slow::default();
        let mut take = |up, lost: u64| {
            let ways = [json!({"lost_frames": lost}), json!({"lost_frames": 0})];
            let circuits = Circuits::from([("wan a1:b1".to_owned(), ways)]);
            let interfaces = [[0, 1].as_slice()].into_iter();
            let told = slow.take(&fabric, interfaces, Some(vec![true, up]), Some(circuits));
            (told.into_iter().map(|(_, text)| text).collect::<String>(), slow.lost["wan a1:b1"][0])
        };
        assert_eq!(take(true, 5), (String::new(), 0), "what was before is not told");
        assert_eq!(take(true, 105), (String::new(), 1000), "at least 0.1 s");
        assert_eq!(take(false, 105), ("the link leaf1:up1 to spine1:dn1 is down".into(), 0));
        assert_eq!(take(true, 3), ("the link leaf1:up1 to spine1:dn1 is up again".into(), 0));
    }
}
