//! The text of single values as the file has it. ContainerLab reads `env`, `labels` and `sysctls` as
//! text: `1.10` and `yes` stay what they are.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Values by their names; nothing is the empty text.
type Values = Option<BTreeMap<String, Option<String>>>;

/// The file, as far as its values are text.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    topology: Topology,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Topology {
    defaults: Option<Level>,
    kinds: Option<BTreeMap<String, Option<Level>>>,
    groups: Option<BTreeMap<String, Option<Level>>>,
    nodes: Option<BTreeMap<String, Option<Level>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Level {
    env: Values,
    labels: Values,
    sysctls: Values,
}

/// The texts of a file.
#[derive(Debug, Default)]
pub(super) struct Texts(BTreeMap<String, String>);

impl Texts {
    /// Reads the texts. A file of another form has none, and what it is refused for is found later.
    pub(super) fn of(text: &str) -> Self {
        let File { topology } = serde_norway::from_str(text).unwrap_or_default();
        let mut found = BTreeMap::new();
        let groups =
            [("kinds", topology.kinds), ("groups", topology.groups), ("nodes", topology.nodes)];
        let levels = groups.into_iter().flat_map(|(group, levels)| {
            let levels = levels.unwrap_or_default().into_iter();
            levels.map(move |(name, level)| (format!("topology.{group}.{name}"), level))
        });
        let defaults = ("topology.defaults".to_owned(), topology.defaults);
        for (place, level) in levels.chain([defaults]) {
            let Level { env, labels, sysctls } = level.unwrap_or_default();
            for (key, values) in [("env", env), ("labels", labels), ("sysctls", sysctls)] {
                let values = values.unwrap_or_default().into_iter();
                found.extend(values.map(|(name, text)| {
                    (format!("{place}.{key}.{name}"), text.unwrap_or_default())
                }));
            }
        }
        Self(found)
    }

    /// The text at this place, unless a merge key (`<<`) has brought it.
    pub(super) fn at(&self, place: &str) -> Option<&str> {
        self.0.get(place).map(String::as_str)
    }
}
