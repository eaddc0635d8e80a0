//! Brings nodes up in parallel. Each node passes its stages, and waits for other nodes where the
//! topology file requires it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::progress::{Interrupted, OnProgress};
use crate::topology::{Endpoint, Stage, Topology, order};

/// How often a waiting thread checks whether the work was stopped.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How often progress is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The progress of all nodes.
#[derive(Debug, Default)]
struct Progress {
    /// The last stage that each node has completed.
    done: BTreeMap<String, Stage>,
    /// Nodes whose links may be made.
    ready: BTreeMap<String, bool>,
    /// Whether each link exists, by its index in the file.
    made: Vec<bool>,
    /// Set when the work is stopped: no node continues.
    stopped: bool,
}

/// Shared state through which nodes publish their progress and wait for others.
#[derive(Debug)]
pub(crate) struct StageTracker<'a> {
    topology: &'a Topology,
    /// The ends, as the index of the link and the node, for which their link does not wait.
    not_awaited: BTreeSet<(usize, &'a str)>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl<'a> StageTracker<'a> {
    /// A tracker before any node has started. Links between nodes without delays and early stages
    /// can be made immediately.
    pub(crate) fn new(topology: &'a Topology) -> Self {
        let at_once = |node: &str| {
            topology.nodes.get(node).is_some_and(|node| {
                let begin = [Stage::Create, Stage::CreateLinks];
                node.startup_delay == 0
                    && begin.iter().all(|stage| !node.stages.contains_key(stage))
            })
        };
        let ready = topology.nodes.keys().map(|node| (node.clone(), at_once(node))).collect();
        let made = vec![false; topology.links.len()];
        let progress = Mutex::new(Progress { ready, made, ..Progress::default() });
        let not_awaited = order::not_awaited(topology);
        Self { topology, not_awaited, progress, changed: Condvar::new() }
    }

    pub(crate) fn topology(&self) -> &'a Topology {
        self.topology
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `so` holds or `limit`, if there is one, has passed. Returns `false` if the work was
    /// stopped.
    fn wait(&self, limit: Option<Instant>, so: impl Fn(&Progress) -> bool) -> bool {
        let mut progress = self.lock();
        loop {
            if progress.stopped {
                return false;
            }
            if so(&progress) || limit.is_some_and(|limit| Instant::now() >= limit) {
                return true;
            }
            let result = self.changed.wait_timeout(progress, CHECK_INTERVAL);
            progress = result.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether the work was not stopped.
    pub(crate) fn goes_on(&self) -> bool {
        !self.lock().stopped
    }

    /// Waits for the nodes that this stage depends on. Returns `false` if the work was stopped.
    pub(crate) fn enter(&self, node: &str, stage: Stage) -> bool {
        let waits = self.topology.nodes.get(node).and_then(|node| node.stages.get(&stage));
        let waits = waits.map(|stage| stage.wait_for.as_slice()).unwrap_or_default();
        self.wait(None, |progress| {
            waits
                .iter()
                .all(|(node, stage)| progress.done.get(node).is_some_and(|done| done >= stage))
        })
    }

    /// Records that the node has completed a stage.
    pub(crate) fn done(&self, node: &str, stage: Stage) {
        self.change(|progress| {
            progress.done.insert(node.to_owned(), stage);
        });
    }

    /// Marks the node's links as ready to be made and waits until they exist. A node that shares a
    /// namespace waits for the links of its owner, too. Returns `false` if the work was stopped.
    pub(crate) fn await_links(&self, node: &str) -> bool {
        self.change(|progress| {
            progress.ready.insert(node.to_owned(), true);
        });
        let owner = self.topology.owner(node);
        let is_here = |end: &Endpoint| end.node == node || end.node == owner;
        self.wait(None, |progress| {
            let mut links = self.topology.links.iter().zip(&progress.made);
            links.all(|(link, made)| *made || !link.ends.iter().any(is_here))
        })
    }

    /// Waits for the given time. Returns `false` if the work was stopped.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        self.wait(Instant::now().checked_add(time), |_| false)
    }

    /// Stops the work of all nodes.
    pub(crate) fn stop(&self) {
        self.change(|progress| progress.stopped = true);
    }

    /// Makes links in the order of the file as soon as the ends that they wait for are ready, and
    /// reports progress. Returns when `ended` returns true.
    pub(crate) fn make_links<E: From<Interrupted>>(
        &self,
        make: impl Fn(usize) -> Result<(), E>,
        ended: impl Fn() -> bool,
        report: OnProgress,
    ) -> Result<(), E> {
        let mut milestones = [
            (None, "links created"),
            (Some(Stage::CreateLinks), "FRR started"),
            (Some(Stage::Configure), "nodes configured"),
        ]
        .into_iter()
        .peekable();
        let mut reported = Instant::now();
        loop {
            let next = |progress: &Progress| {
                let ready = |index: usize, node: &str| {
                    let ready = progress.ready.get(node).is_some_and(|ready| *ready);
                    ready || self.not_awaited.contains(&(index, node))
                };
                let mut links = self.topology.links.iter().zip(&progress.made).enumerate();
                links
                    .find(|(index, (link, made))| {
                        !**made && link.ends.iter().all(|end| ready(*index, &end.node))
                    })
                    .map(|(index, _)| index)
            };
            let reached = |progress: &Progress, stage: Option<Stage>| match stage {
                None => progress.made.iter().all(|made| *made),
                Some(stage) => self
                    .topology
                    .nodes
                    .keys()
                    .all(|node| progress.done.get(node).is_some_and(|done| *done >= stage)),
            };
            let link = next(&self.lock());
            if let Some(link) = link {
                make(link)?;
                self.change(|progress| {
                    progress.made.iter_mut().skip(link).take(1).for_each(|made| *made = true)
                });
                continue;
            }
            while let Some((_, text)) =
                milestones.next_if(|(stage, _)| reached(&self.lock(), *stage))
            {
                report(text)?;
            }
            if ended() {
                return Ok(());
            }
            let milestone = milestones.peek().map(|(stage, _)| *stage);
            let goes_on = self.wait(Some(Instant::now() + CHECK_INTERVAL), |progress| {
                next(progress).is_some() || milestone.is_some_and(|stage| reached(progress, stage))
            });
            if !goes_on {
                std::thread::sleep(CHECK_INTERVAL);
            }
            if reported.elapsed() >= REPORT_INTERVAL {
                reported = Instant::now();
                let configured =
                    self.lock().done.values().filter(|done| **done >= Stage::Configure).count();
                report(&format!("{configured} of {} nodes configured", self.topology.nodes.len()))?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_wait_for_both_ends_and_nodes_for_each_other() {
        let text = "{name: x, topology: {defaults: {kind: linux}, nodes: {a: , c: , b: {stages: \
                    {create-links: {wait-for: [{node: c, stage: configure}]}}}}}}";
        let mut topology = Topology::parse(text, "/labs".as_ref(), |_| None).unwrap();
        let end = |node: &str, interface: &str| crate::topology::Endpoint {
            node: node.into(),
            interface: interface.into(),
        };
        let link = |ends| crate::topology::Link { ends, settings: Default::default(), mtu: 1500 };
        topology.links =
            vec![link([end("a", "x"), end("b", "x")]), link([end("a", "y"), end("c", "y")])];
        let tracker = StageTracker::new(&topology);
        let events = Mutex::new(Vec::new());
        let say = |text: String| events.lock().unwrap().push(text);
        std::thread::scope(|scope| {
            let nodes: Vec<_> = ["a", "b", "c"]
                .into_iter()
                .map(|node| {
                    let (tracker, say) = (&tracker, &say);
                    scope.spawn(move || {
                        assert!(tracker.enter(node, Stage::CreateLinks));
                        assert!(tracker.await_links(node));
                        say(format!("{node} has links"));
                        tracker.done(node, Stage::CreateLinks);
                        assert!(tracker.enter(node, Stage::Configure));
                        say(format!("{node} configured"));
                        tracker.done(node, Stage::Configure);
                    })
                })
                .collect();
            let make = |link| {
                say(format!("link {link}"));
                Ok::<_, Interrupted>(())
            };
            tracker
                .make_links(make, || nodes.iter().all(|node| node.is_finished()), &|_| Ok(()))
                .unwrap();
        });
        let events = events.into_inner().unwrap();
        let at = |text: &str| events.iter().position(|event| event == text).unwrap();
        assert!(
            at("link 1") < at("c has links") && at("c configured") < at("link 0"),
            "{events:?}"
        );
        assert!(at("link 0") < at("a has links") && at("link 0") < at("b has links"), "{events:?}");

        // b waits for a to be configured, so their link is made without b.
        let text = "{name: x, topology: {defaults: {kind: linux}, nodes: {a: , b: {stages: {create: \
                    {wait-for: [{node: a, stage: configure}]}}}}, \
                    links: [{endpoints: ['a:x', 'b:x']}]}}";
        let of_two = Topology::parse(text, "/labs".as_ref(), |_| None).unwrap();
        let tracker = StageTracker::new(&of_two);
        std::thread::scope(|scope| {
            let a = scope.spawn(|| {
                assert!(tracker.await_links("a"));
                tracker.done("a", Stage::Configure);
            });
            let b = scope.spawn(|| {
                assert!(tracker.enter("b", Stage::Create) && tracker.await_links("b"));
            });
            let ended = || a.is_finished() && b.is_finished();
            tracker.make_links(|_| Ok::<_, Interrupted>(()), ended, &|_| Ok(())).unwrap();
        });

        // Once the work is stopped, waiting threads return.
        let tracker = StageTracker::new(&topology);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| tracker.await_links("b"));
            tracker.stop();
            assert!(!waiting.join().unwrap());
        });
    }
}
