//! What a page can ask for, and the command of each: what a shell would run.

use serde::Deserialize;
use serde_json::Value;

use crate::model::Fabric;

/// An action. Values are texts as on the command line.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Action {
    /// Sets a link down, for a time.
    Down { link: String, time: Option<String> },
    /// Sets a link up.
    Up { link: String },
    /// Changes the properties of a circuit. Empty texts change nothing.
    Impair {
        link: String,
        #[serde(default)]
        delay: String,
        #[serde(default)]
        jitter: String,
        #[serde(default)]
        loss: String,
        #[serde(default)]
        rate: String,
        #[serde(default)]
        direction: String,
        #[serde(default)]
        time: String,
    },
    /// Changes policy and datapath of all leaves or one; starts vtepd where it does not run.
    Policy { policy: String, datapath: Option<String>, leaf: Option<String> },
    /// Changes the policy of a VNI on one leaf.
    VniPolicy { leaf: String, vni: u32, policy: String },
    /// Starts a stream of numbered RoCE frames, to as many queue pairs, or to those with these
    /// numbers.
    Send {
        from: String,
        to: String,
        queue_pairs: u32,
        #[serde(default)]
        numbers: String,
        rate: u32,
        seconds: u32,
    },
    /// Runs a collective operation between hosts.
    Workload {
        hosts: Vec<String>,
        collective: String,
        bytes: String,
        queue_pairs: u32,
        #[serde(default)]
        rate: String,
        iterations: u32,
    },
    /// Kills the vtepd of a leaf.
    Kill { leaf: String },
    /// Asks for the path of a queue pair.
    Path { from: String, to: String, queue_pair: u32 },
}

/// An action cannot be performed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ActionError {
    /// The page named something that the fabric does not have.
    #[error("the fabric has no {what} '{name}': reload the page")]
    Unknown {
        /// Link, leaf or host.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A value would be an option of the command.
    #[error("'{0}' is no value: it begins with '-'")]
    Option(String),
    /// No vtepd answers there.
    #[error("no vtepd answers on {0}: start it with a policy for all leaves")]
    NoVtepd(String),
}

impl Action {
    /// Whether it changes nothing.
    pub(crate) const fn only_reads(&self) -> bool {
        matches!(self, Self::Path { .. })
    }

    /// The command. `leaves` is the present state of the leaves.
    pub(crate) fn command(
        &self,
        fabric: &Fabric,
        leaves: Option<&Value>,
    ) -> Result<Vec<String>, ActionError> {
        let mut words = vec![fabric.program.display().to_string()];
        words.extend(match self {
            Self::Down { link, time } => {
                let mut words = Words::new(fabric, &["link", "down"]);
                words.option("--for", time.as_deref().unwrap_or_default())?;
                words.plain(known_link(fabric, link)?)?
            }
            Self::Up { link } => {
                Words::new(fabric, &["link", "up"]).plain(known_link(fabric, link)?)?
            }
            Self::Impair { link, delay, jitter, loss, rate, direction, time } => {
                let mut words = Words::new(fabric, &["link", "impair"]);
                words.options([
                    ("--delay", delay),
                    ("--jitter", jitter),
                    ("--loss", loss),
                    ("--rate", rate),
                    ("--direction", direction),
                    ("--for", time),
                ])?;
                words.plain(known_link(fabric, link)?)?
            }
            Self::Policy { policy, datapath, leaf } => {
                let mut words = Words::new(fabric, &["policy"]);
                if let Some(leaf) = leaf {
                    words.option("--leaf", known("leaf", leaf, is_leaf(fabric, leaf))?)?;
                }
                words.option("--datapath", datapath.as_deref().unwrap_or_default())?;
                words.plain(policy)?
            }
            Self::VniPolicy { leaf, vni, policy } => {
                let leaf = known("leaf", leaf, is_leaf(fabric, leaf))?;
                let vtepctl = fabric.program.with_file_name("vtepctl").display().to_string();
                let mut words = Words::new(fabric, &["exec"]).plain(leaf)?;
                words.extend(["--".to_owned(), vtepctl, "policy".to_owned(), "set".to_owned()]);
                words.extend([vni.to_string(), checked(policy)?]);
                words
            }
            Self::Send { from, to, queue_pairs, numbers, rate, seconds } => {
                let mut words = stream(fabric, from, to)?;
                words.queue_pairs(*queue_pairs, numbers)?;
                let [rate, seconds] = [rate, seconds].map(ToString::to_string);
                words.options([("--rate", &rate), ("--seconds", &seconds)])?;
                words.0
            }
            Self::Workload { hosts, collective, bytes, queue_pairs, rate, iterations } => {
                let mut words = Words::new(fabric, &["workload"]);
                words.options([
                    ("--collective", collective),
                    ("--bytes", bytes),
                    ("--queue-pairs", &queue_pairs.to_string()),
                    ("--rate", rate),
                    ("--iterations", &iterations.to_string()),
                ])?;
                words.hosts(fabric, hosts)?
            }
            Self::Kill { leaf } => {
                return kill(leaves, known("leaf", leaf, is_leaf(fabric, leaf))?);
            }
            Self::Path { from, to, queue_pair } => {
                let mut words = Words::new(fabric, &["path", "-o", "json"]);
                words.options([
                    ("--from", known("host", from, fabric.hosts.contains_key(from))?),
                    ("--to", known("host", to, fabric.hosts.contains_key(to))?),
                    ("--qp", &format!("{queue_pair:#x}")),
                ])?;
                words.0
            }
        });
        Ok(words)
    }
}

/// The command that kills the vtepd of a leaf.
fn kill(leaves: Option<&Value>, leaf: &str) -> Result<Vec<String>, ActionError> {
    let pid = leaves.and_then(|all| all.get(leaf)?.get("pid")?.as_u64());
    let pid = pid.ok_or_else(|| ActionError::NoVtepd(leaf.to_owned()))?;
    Ok(["kill", "-9", &pid.to_string()].map(str::to_owned).into())
}

/// The words of a command of `lab`.
struct Words(Vec<String>);

impl Words {
    fn new(fabric: &Fabric, command: &[&str]) -> Self {
        let mut words: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        words.extend(["--name".to_owned(), fabric.name.clone()]);
        Self(words)
    }

    /// Adds `--name value`, unless the value is empty.
    fn option(&mut self, name: &str, value: &str) -> Result<(), ActionError> {
        if !value.is_empty() {
            self.0.extend([name.to_owned(), checked(value)?]);
        }
        Ok(())
    }

    fn options<const N: usize>(&mut self, all: [(&str, &str); N]) -> Result<(), ActionError> {
        all.into_iter().try_for_each(|(name, value)| self.option(name, value))
    }

    /// As many queue pairs, or those with these numbers.
    fn queue_pairs(&mut self, count: u32, numbers: &str) -> Result<(), ActionError> {
        if numbers.is_empty() {
            return self.option("--queue-pairs", &count.to_string());
        }
        numbers.split_whitespace().try_for_each(|number| self.option("--qp", number))
    }

    fn hosts(mut self, fabric: &Fabric, hosts: &[String]) -> Result<Vec<String>, ActionError> {
        for host in hosts {
            known("host", host, fabric.hosts.contains_key(host))?;
            self.0.push(checked(host)?);
        }
        Ok(self.0)
    }

    fn plain(mut self, value: &str) -> Result<Vec<String>, ActionError> {
        self.0.push(checked(value)?);
        Ok(self.0)
    }
}

fn checked(value: &str) -> Result<String, ActionError> {
    if value.starts_with('-') {
        return Err(ActionError::Option(value.to_owned()));
    }
    Ok(value.to_owned())
}

fn known<'a>(what: &'static str, name: &'a str, there: bool) -> Result<&'a str, ActionError> {
    if there { Ok(name) } else { Err(ActionError::Unknown { what, name: name.to_owned() }) }
}

fn known_link<'a>(fabric: &Fabric, name: &'a str) -> Result<&'a str, ActionError> {
    known("link", name, is_link(fabric, name))
}

/// A stream between two hosts.
fn stream(fabric: &Fabric, from: &str, to: &str) -> Result<Words, ActionError> {
    let from = known("host", from, fabric.hosts.contains_key(from))?;
    let address = fabric.hosts.get(to);
    known("host", to, address.is_some())?;
    let to = address.map_or_else(String::new, ToString::to_string);
    let mut words = Words::new(fabric, &["roce", "send"]);
    words.options([("--node", from), ("--to", &to)])?;
    Ok(words)
}

fn is_link(fabric: &Fabric, name: &str) -> bool {
    fabric.links.iter().any(|link| link.interfaces.iter().any(|end| end == name))
}

fn is_leaf(fabric: &Fabric, name: &str) -> bool {
    fabric.nodes.get(name).is_some_and(|node| node.leaf)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::model::{Link, Node};
    use serde_json::json;

    fn fabric() -> Fabric {
        let link = Link {
            a: "leaf1:up1".into(),
            b: "spine1:dn1".into(),
            circuit: None,
            interfaces: vec!["leaf1:up1".into(), "spine1:dn1".into()],
        };
        Fabric {
            name: "x".into(),
            picture: String::new(),
            nodes: BTreeMap::from([(
                "leaf1".to_owned(),
                Node { namespace: "lab-x-leaf1".into(), leaf: true },
            )]),
            links: vec![link],
            hosts: BTreeMap::from([
                ("host1".to_owned(), [192, 168, 10, 1].into()),
                ("host2".to_owned(), [192, 168, 10, 2].into()),
            ]),
            program: "/bin/lab".into(),
            circuits: Arc::new(BTreeMap::new),
        }
    }

    fn command(action: &Value) -> Result<String, ActionError> {
        let action: Action = serde_json::from_value(action.clone()).unwrap();
        let leaves = json!({"leaf1": {"pid": 77}});
        Ok(action.command(&fabric(), Some(&leaves))?.join(" "))
    }

    #[test]
    fn each_action_is_a_command_of_the_shell() {
        let cases = [
            (
                json!({"action": "down", "link": "leaf1:up1", "time": "3s"}),
                "/bin/lab link down --name x --for 3s leaf1:up1",
            ),
            (
                json!({"action": "impair", "link": "spine1:dn1", "delay": "5ms", "loss": "1%"}),
                "/bin/lab link impair --name x --delay 5ms --loss 1% spine1:dn1",
            ),
            (json!({"action": "policy", "policy": "qp-pin"}), "/bin/lab policy --name x qp-pin"),
            (
                json!({"action": "policy", "policy": "kernel", "leaf": "leaf1"}),
                "/bin/lab policy --name x --leaf leaf1 kernel",
            ),
            (
                json!({"action": "workload", "hosts": ["host2", "host1"], "bytes": "1MiB", "rate": "",
                       "collective": "all-to-all", "queue_pairs": 4, "iterations": 9}),
                "/bin/lab workload --name x --collective all-to-all --bytes 1MiB --queue-pairs 4 \
                 --iterations 9 host2 host1",
            ),
            (
                json!({"action": "vni-policy", "leaf": "leaf1", "vni": 10, "policy": "qp-hash"}),
                "/bin/lab exec --name x leaf1 -- /bin/vtepctl policy set 10 qp-hash",
            ),
            (json!({"action": "kill", "leaf": "leaf1"}), "kill -9 77"),
            (
                json!({"action": "send", "from": "host1", "to": "host2", "queue_pairs": 4,
                       "rate": 100, "seconds": 9}),
                "/bin/lab roce send --name x --node host1 --to 192.168.10.2 --queue-pairs 4 \
                 --rate 100 --seconds 9",
            ),
            (
                json!({"action": "send", "from": "host1", "to": "host2", "queue_pairs": 4,
                       "numbers": "0x11 0x12", "rate": 100, "seconds": 9}),
                "/bin/lab roce send --name x --node host1 --to 192.168.10.2 --qp 0x11 --qp 0x12 \
                 --rate 100 --seconds 9",
            ),
        ];
        for (action, words) in cases {
            assert_eq!(command(&action).unwrap(), words);
        }
    }

    #[test]
    fn names_and_options_of_a_page_are_checked() {
        let unknown = command(&json!({"action": "up", "link": "leaf9:up1; reboot"}));
        assert!(unknown.unwrap_err().to_string().contains("reboot"));
        for action in [
            json!({"action": "policy", "policy": "--vtepd=/tmp/evil"}),
            json!({"action": "vni-policy", "leaf": "leaf1", "vni": 1, "policy": "-x"}),
            json!({"action": "down", "link": "leaf1:up1", "time": "-1"}),
            json!({"action": "send", "from": "host1", "to": "host2", "queue_pairs": 4,
                   "numbers": "0x11 --node=leaf1", "rate": 100, "seconds": 9}),
        ] {
            assert!(matches!(command(&action), Err(ActionError::Option(_))), "{action}");
        }
        for leaf in [
            json!({"action": "kill", "leaf": "host1"}),
            json!({"action": "policy", "policy": "qp-pin", "leaf": "host1"}),
        ] {
            assert!(matches!(command(&leaf), Err(ActionError::Unknown { what: "leaf", .. })));
        }
        let host = json!({"action": "workload", "hosts": ["--help"], "bytes": "1MiB",
                          "collective": "all-gather", "queue_pairs": 4, "iterations": 9});
        assert!(matches!(command(&host), Err(ActionError::Unknown { what: "host", .. })));
    }
}
