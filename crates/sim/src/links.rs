//! A topology from a list of links.

use std::collections::{BTreeMap, VecDeque};

use crate::topology::{Lines, Link, Switch, Topology};

/// The names at the ends of each link.
type Names<'a> = Vec<[&'a str; 2]>;

/// The neighbours of each node, once for each link.
fn neighbours<'a>(links: &Names<'a>) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut all = BTreeMap::<&str, Vec<&str>>::new();
    for [a, b] in links {
        all.entry(*a).or_default().push(*b);
        all.entry(*b).or_default().push(*a);
    }
    all
}

/// The numbers in names count as numbers: `host2` is before `host10`.
fn natural(name: &str) -> (&str, u64, &str) {
    let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = name.get(letters.len()..).unwrap_or_default();
    (letters, digits.parse().unwrap_or_default(), name)
}

/// How many links each switch is away from the nearest host, less one.
fn tiers<'a>(
    all: &BTreeMap<&'a str, Vec<&'a str>>,
    hosts: &BTreeMap<&'a str, u32>,
) -> BTreeMap<&'a str, u8> {
    let mut found = BTreeMap::new();
    let leaves = hosts.keys().filter_map(|host| all.get(host)?.first().copied());
    let mut queue: VecDeque<(&str, u8)> = leaves.map(|leaf| (leaf, 0)).collect();
    while let Some((node, tier)) = queue.pop_front() {
        if hosts.contains_key(node) || found.contains_key(node) {
            continue;
        }
        found.insert(node, tier);
        let next = all.get(node).into_iter().flatten();
        queue.extend(next.map(|next| (*next, tier.saturating_add(1))));
    }
    found
}

/// The number of uplinks at each tier, as long as all switches of a tier have as many. Links within
/// a tier, such as circuits between sites, are uplinks, too.
fn uplinks(all: &BTreeMap<&str, Vec<&str>>, tiers: &BTreeMap<&str, u8>) -> Vec<u16> {
    let mut numbers = Vec::new();
    for tier in 0..=u8::MAX {
        let own = tiers.iter().filter(|(_, found)| **found == tier);
        let mut counts: Vec<usize> = own
            .map(|(node, _)| {
                let next = all.get(node).into_iter().flatten();
                next.filter(|next| tiers.get(**next).is_some_and(|other| *other >= tier)).count()
            })
            .collect();
        counts.dedup();
        match counts[..] {
            [count] if count > 0 => numbers.push(u16::try_from(count).unwrap_or(u16::MAX)),
            _ => break,
        }
    }
    numbers
}

impl Topology {
    /// The topology of a text that has the names of two nodes on each line: a link. The word
    /// `circuit` behind them makes it a circuit. Nodes with one link are hosts, in the order of their
    /// names, and all others are switches.
    ///
    /// # Errors
    /// A sentence.
    pub fn of_links(text: &str, lines: Lines, circuits: Lines) -> Result<Self, String> {
        // In the same order: the names at the ends of each link, and whether it is a circuit.
        let (mut links, mut are_circuits) = (Names::new(), Vec::new());
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                [a, b] => {
                    links.push([a, b]);
                    are_circuits.push(false);
                }
                [a, b, "circuit"] => {
                    links.push([a, b]);
                    are_circuits.push(true);
                }
                _ => return Err(format!("'{line}' is no link: use the names of two nodes")),
            }
        }
        let all = neighbours(&links);
        let mut names: Vec<&str> =
            all.iter().filter(|(_, next)| next.len() == 1).map(|(name, _)| *name).collect();
        names.sort_by_key(|name| natural(name));
        let hosts: BTreeMap<&str, u32> = names.iter().copied().zip(0..).collect();
        let tiers = tiers(&all, &hosts);
        if tiers.len() + hosts.len() < all.len() || tiers.is_empty() {
            return Err("it has nodes that no host reaches: connect them, or remove them".into());
        }
        let is_host = |name: &str| hosts.contains_key(name);
        if let Some([a, b]) = links.iter().find(|ends| ends.iter().all(|name| is_host(name))) {
            return Err(format!("'{a}' and '{b}' have no other link: connect them to a switch"));
        }
        let mut switches: Vec<(&str, u8)> =
            tiers.iter().map(|(name, tier)| (*name, *tier)).collect();
        switches.sort_by_key(|(name, tier)| (*tier, natural(name)));
        let numbers = hosts.iter().map(|(name, number)| (*name, *number));
        let switch_numbers = switches.iter().map(|(name, _)| *name).zip(hosts.len() as u32..);
        let numbers: BTreeMap<&str, u32> = numbers.chain(switch_numbers).collect();
        let mut found = Vec::new();
        for ([a, b], is_circuit) in links.into_iter().zip(are_circuits) {
            let Lines { rate, delay } = if is_circuit { circuits } else { lines };
            let mut ends = [a, b].map(|name| numbers.get(name).copied().unwrap_or_default());
            // The links of hosts are first, in their order.
            ends.sort_unstable();
            found.push(Link { ends, rate, delay });
        }
        found.sort_by_key(|link| link.ends);
        let switch = |(name, tier): (&str, u8)| Switch { name: name.to_owned(), tier };
        Ok(Self {
            hosts: hosts.len() as u32,
            uplinks: uplinks(&all, &tiers),
            switches: switches.into_iter().map(switch).collect(),
            links: found,
            host_names: names.into_iter().map(str::to_owned).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Rate;
    use crate::topology::{FatTree, LeafSpine};

    const LINES: Lines = Lines { rate: Rate::ENDLESS, delay: 1 };

    #[test]
    fn the_list_of_a_fabrics_links_gives_the_fabric() {
        let tree = FatTree { pods: 3, leaves: 2, hosts: 4, aggregations: 2, cores: 3 };
        let numbers = LeafSpine { leaves: 12, hosts: 3, spines: 4 };
        for fabric in [
            Topology::fat_tree(&tree, LINES),
            Topology::leaf_spine(&numbers, LINES),
            Topology::two_sites(&numbers, LINES, Lines { delay: 9, ..LINES }),
        ] {
            let line = |link: &Link| {
                let long = if link.delay == 9 { " circuit" } else { "" };
                link.ends.map(|node| fabric.name(node)).join(" ") + long
            };
            let mut text: Vec<String> = fabric.links.iter().map(line).collect();
            text.reverse();
            let mut found =
                Topology::of_links(&text.join("\n"), LINES, Lines { delay: 9, ..LINES }).unwrap();
            assert_eq!(found.host_names.len(), found.hosts as usize);
            found.host_names.clear();
            let mut links = fabric.links.clone();
            links.sort_by_key(|link| link.ends);
            assert_eq!(found, Topology { links, ..fabric });
        }
    }

    #[test]
    fn what_is_no_fabric_is_refused() {
        let refused = |text| Topology::of_links(text, LINES, LINES).unwrap_err();
        assert!(refused("a b c").contains("'a b c' is no link"));
        assert!(refused("").contains("no host reaches"));
        assert!(refused("a b\nx y\ny z\nz x").contains("no host reaches"));
        assert!(refused("h1 l\nh2 l\na1 a2").contains("'a1' and 'a2' have no other link"));
    }

    #[test]
    fn a_line_beside_a_circuit_stays_a_line() {
        let text = "h1 s1\nh2 s2\ns1 s2\ns1 s2 circuit";
        let found = Topology::of_links(text, LINES, Lines { delay: 9, ..LINES }).unwrap();
        let delays: Vec<_> = found.links.iter().map(|link| link.delay).collect();
        assert_eq!(delays.iter().filter(|delay| **delay == 9).count(), 1, "{delays:?}");
    }
}
