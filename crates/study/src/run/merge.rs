//! Joins the parts of an experiment that ran on several machines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use experiment::compare::Results;
use experiment::plan::Key;
use experiment::record::{Machine, Manifest};
use experiment::shard::Shard;
use experiment::{Experiment, Plan};

use super::directory::{self, Directory};
use super::inputs::Inputs;
use super::outcome::Outcome;
use super::stop::is_precise;
use crate::error::RunError;

/// A part, and where it is.
struct Part {
    path: PathBuf,
    shard: Shard,
    results: Results,
}

/// Joins parts into a new directory, and writes what follows from them. Parts must be of the same file,
/// form, commit and version of FRR, and all of them must be complete. Their machines may differ, and
/// so may programs of one commit without changes.
///
/// # Errors
/// [`RunError`], also if parts do not belong together, are there twice, or are missing.
pub fn merge(paths: &[PathBuf], out: &Path) -> Result<Outcome, RunError> {
    let parts = paths.iter().map(|path| Part::read(path)).collect::<Result<Vec<_>, _>>()?;
    let [first, others @ ..] = &parts[..] else { return Err(RunError::Nothing) };
    for other in others {
        first.check(other)?;
    }
    check_missing(&parts, out)?;
    let Part { results: Results { experiment, manifest, .. }, path, .. } = first;
    let inputs = directory::inputs(path, manifest)?;
    let machines: Vec<&Machine> = parts.iter().map(|part| &part.results.manifest.machine).collect();
    let new = |(at, machine): (usize, &&Machine)| {
        (!machines.iter().take(at).any(|known| known == machine)).then_some((*machine).clone())
    };
    let all = machines.iter().enumerate().filter_map(new);
    let joined = Manifest { shard: None, others: all.skip(1).collect(), ..manifest.clone() };
    let command = format!(
        "lab run {} --out DIR{}",
        Path::new("DIR").join(directory::EXPERIMENT).display(),
        if manifest.quick { " --quick" } else { "" }
    );
    write(&parts, experiment, (&joined, &inputs), out, &command)
}

/// Writes the runs of all parts in the order of the plan, and what follows from them.
fn write(
    parts: &[Part],
    experiment: &Experiment,
    (manifest, inputs): (&Manifest, &Inputs),
    out: &Path,
    command: &str,
) -> Result<Outcome, RunError> {
    let runs = parts.iter().flat_map(|part| &part.results.runs);
    let mut runs: BTreeMap<&Key, _> = runs.map(|run| (&run.key, run)).collect();
    let mut directory = Directory::open(out, manifest, inputs)?;
    for key in Plan::new(experiment).turns.iter().flat_map(|turn| &turn.runs) {
        if let Some(run) = runs.remove(key).filter(|_| !directory.has(key)) {
            directory.append(run.clone())?;
        }
    }
    directory.write_results(experiment, manifest, command, true)
}

fn problem(path: &Path, problem: impl Into<String>) -> RunError {
    RunError::Merge { path: path.to_owned(), problem: problem.into() }
}

impl Part {
    fn read(path: &Path) -> Result<Self, RunError> {
        let results = directory::load(path)?;
        let Some(shard) = results.manifest.shard else {
            return Err(problem(path, "it has all runs, and is no part: --shard makes parts"));
        };
        let mut known = BTreeSet::new();
        for run in &results.runs {
            if !shard.has_run(&run.key) || !known.insert(&run.key) {
                return Err(problem(
                    path,
                    format!("{} is not its own, or there twice", name(&run.key)),
                ));
            }
        }
        Ok(Self { path: path.to_owned(), shard, results })
    }

    /// Whether another part belongs to the same experiment, and is not this one.
    fn check(&self, other: &Self) -> Result<(), RunError> {
        let manifest = |part: &Self| {
            let mut manifest = part.results.manifest.clone();
            manifest.machine.clone_from(&self.results.manifest.machine);
            manifest.shard = None;
            // Another compiler makes another program of the same sources.
            if is_clean(&manifest.commit) {
                manifest.programs.clear();
            }
            manifest
        };
        let differences = manifest(self).differences(&manifest(other));
        if !differences.is_empty() {
            let with = self.path.display();
            let text = format!("it cannot be joined with {with}:\n  {}", differences.join("\n  "));
            return Err(problem(&other.path, text));
        }
        if self.shard.count() != other.shard.count() {
            let text = format!(
                "it is part {}, and {} is part {}",
                other.shard,
                self.path.display(),
                self.shard
            );
            return Err(problem(&other.path, text));
        }
        Ok(())
    }

    /// The runs that it still has to make.
    fn missing(&self) -> Vec<Key> {
        let Results { experiment, runs, .. } = &self.results;
        let done: BTreeSet<&Key> = runs.iter().map(|run| &run.key).collect();
        let rule = &experiment.repetitions;
        let wanted = |key: &Key| {
            self.shard.has_run(key) && !done.contains(key) && !is_precise(rule, key, runs)
        };
        let all = Plan::new(experiment).turns.into_iter().flat_map(|turn| turn.runs);
        all.filter(wanted).collect()
    }
}

/// Whether a commit tells all about the sources.
fn is_clean(commit: &str) -> bool {
    commit != "unknown" && !commit.ends_with("-dirty")
}

/// A run in words.
fn name(key: &Key) -> String {
    let Key { fabric, dataplane, point, repetition, .. } = key;
    let variant = match point.variant() {
        "" => String::new(),
        variant => format!(", {variant}"),
    };
    let queue_pairs = point.queue_pairs.get();
    format!("{dataplane} on {fabric}, {queue_pairs} queue pairs{variant}, repetition {repetition}")
}

/// Whether all parts are there, once, and complete.
fn check_missing(parts: &[Part], out: &Path) -> Result<(), RunError> {
    let Some(first) = parts.first() else { return Ok(()) };
    let mut lines = Vec::new();
    for shard in first.shard.all() {
        let own: Vec<&Part> = parts.iter().filter(|part| part.shard == shard).collect();
        match own[..] {
            [] => lines.push(format!("part {shard} is missing: name its directory, or run it")),
            [part] => {
                let missing = part.missing();
                lines.extend(missing.first().map(|first| {
                    format!(
                        "part {shard} has {} runs to make, first {}: start it again, which continues",
                        missing.len(),
                        name(first)
                    )
                }));
            }
            [one, other, ..] => {
                let text = format!("it is part {shard}, and so is {}", one.path.display());
                return Err(problem(&other.path, text));
            }
        }
    }
    match lines.is_empty() {
        true => Ok(()),
        false => Err(problem(out, format!("parts are not complete:\n  {}", lines.join("\n  ")))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use experiment::Run;

    use super::*;

    const FILE: &str = "name = \"x\"\ntitle = \"x\"\nquestion = \"x?\"\n\
        topologies = [\"topologies/f/f.clab.yml\"]\nbaseline = \"kernel\"\n\
        [[dataplane]]\npolicy = \"kernel\"\n[[dataplane]]\npolicy = \"qp-pin\"\n\
        [sweep]\nqueue-pairs = [4]\n[repetitions]\nmin = 4\nmax = 4\n";

    /// Directories of an experiment of two dataplanes with four repetitions.
    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn manifest(shard: Option<&str>) -> Manifest {
            serde_json::from_value(serde_json::json!({
                "experiment": "x", "quick": false, "file": "1", "commit": "abc", "frr": "8.4.4",
                "files": { "topologies/f/f.clab.yml": "5", "/bin/true": "6" },
                "vtepd": "0.1.0", "programs": { "vtepd": shard.unwrap_or_default() }, "shard": shard,
                "machine": {
                    "kernel": "6.1", "cpu_model": "A", "cpus": 2, "memory_mib": 4096, "id": shard
                        .unwrap_or_default()
                },
            }))
            .unwrap()
        }

        /// A part with these of the plan's runs.
        fn part(&self, name: &str, manifest: &Manifest, has: impl Fn(&Key) -> bool) -> PathBuf {
            let path = self.0.path().join(name);
            let files = [("topologies/f/f.clab.yml".to_owned(), b"name: f\n".to_vec())].into();
            let inputs = Inputs { text: FILE.into(), files, ..Inputs::default() };
            let mut directory = Directory::open(&path, manifest, &inputs).unwrap();
            let experiment = Experiment::parse(Path::new("x.toml"), FILE).unwrap();
            for key in Plan::new(&experiment).turns.into_iter().flat_map(|turn| turn.runs) {
                if has(&key) {
                    let run: Run = super::super::tests::run(key.repetition, 2);
                    directory.append(Run { key, ..run }).unwrap();
                }
            }
            path
        }

        fn whole(&self, shard: &str) -> PathBuf {
            let own: Shard = shard.parse().unwrap();
            let name = shard.replace('/', "-");
            self.part(&name, &Self::manifest(Some(shard)), |key| own.has_run(key))
        }

        fn refused(&self, parts: &[PathBuf]) -> String {
            merge(parts, &self.0.path().join("out")).unwrap_err().to_string()
        }
    }

    #[test]
    fn parts_are_joined_in_the_order_of_the_plan() {
        let place = Place::new();
        let parts = ["1/2", "0/2"].map(|shard| place.whole(shard));
        let out = place.0.path().join("out");
        merge(&parts, &out).unwrap();
        let Results { experiment, manifest, runs } = directory::load(&out).unwrap();
        let planned = Plan::new(&experiment).turns.into_iter().flat_map(|turn| turn.runs);
        assert_eq!(
            runs.iter().map(|run| run.key.clone()).collect::<Vec<_>>(),
            planned.collect::<Vec<_>>()
        );
        let others: Vec<_> = manifest.others.iter().map(|machine| machine.id.as_str()).collect();
        assert_eq!((runs.len(), manifest.shard, manifest.machine.id.as_str()), (8, None, "1/2"));
        assert_eq!(others, ["0/2"]);
        let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();
        assert_eq!(
            (read("experiment.toml").as_str(), read("topologies/f/f.clab.yml").as_str()),
            (FILE, "name: f\n")
        );
        let report = read("report.html");
        assert!(report.contains("Other machines"), "{report}");
        assert!(read("summary.csv").contains("qp-pin"));
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let place = Place::new();
        let first = place.whole("0/2");
        let twice = place.part("twice", &Place::manifest(Some("0/2")), |key| key.repetition == 2);
        let third = place.whole("1/3");
        let all = place.part("all", &Place::manifest(None), |_| true);
        let wrong = place.part("wrong", &Place::manifest(Some("1/2")), |key| key.repetition == 2);
        let of = |name: &str, change: fn(&mut Manifest)| {
            let mut manifest = Place::manifest(Some("1/2"));
            change(&mut manifest);
            place.part(name, &manifest, |_| false)
        };
        let file = of("file", |manifest| manifest.file = "2".into());
        let commit = of("commit", |manifest| manifest.commit = "def".into());
        let quick = of("quick", |manifest| manifest.quick = true);
        for (other, says) in [
            (twice, "it is part 0/2, and so is"),
            (third, "it is part 1/3, and"),
            (all, "it has all runs"),
            (wrong, "repetition 2 is not its own"),
            (file, "file: \"1\" there, \"2\" now"),
            (commit, "commit: \"abc\" there, \"def\" now"),
            (quick, "quick: false there, true now"),
        ] {
            let text = place.refused(&[first.clone(), other.clone()]);
            assert!(text.contains(says), "{}: {text}", other.display());
        }
        // Changes that are in no commit are in the programs only.
        let dirty = |shard: &str| {
            let manifest = Manifest { commit: "abc-dirty".into(), ..Place::manifest(Some(shard)) };
            place.part(&format!("dirty{}", shard.replace('/', "-")), &manifest, |_| false)
        };
        let text = place.refused(&[dirty("0/2"), dirty("1/2")]);
        assert!(text.contains("programs vtepd"), "{text}");
    }

    /// A part comes from another machine, and may be anybody's.
    #[test]
    fn a_part_leads_nowhere_else_and_has_not_any_number_of_others() {
        let place = Place::new();
        let first = place.whole("0/1");
        let secret = place.0.path().join("secret");
        fs::create_dir(&secret).unwrap();
        fs::write(secret.join("f.clab.yml"), "secret").unwrap();
        fs::remove_dir_all(first.join("topologies/f")).unwrap();
        std::os::unix::fs::symlink(&secret, first.join("topologies/f")).unwrap();
        let out = place.0.path().join("out");
        let refused = |part: &Path| match merge(&[part.to_owned()], &out).unwrap_err() {
            RunError::File { path, source } => format!("{}: {source}", path.display()),
            other => panic!("{other}"),
        };
        let text = refused(&first);
        assert!(text.contains("topologies/f/f.clab.yml: it is a link"), "{text}");
        let manifest = first.join("manifest.json");
        for (from, to, says) in [
            ("topologies/f/f.clab.yml", "topologies/../../secret/f.clab.yml", "leads out"),
            ("0/1", "0/18446744073709551615", "manifest.json: '0/18446744073709551615': use"),
        ] {
            let text = fs::read_to_string(&manifest).unwrap();
            fs::write(&manifest, text.replace(from, to)).unwrap();
            let text = refused(&first);
            assert!(text.contains(says), "{text}");
        }
        assert!(!out.exists());
    }

    #[test]
    fn what_is_missing_is_named() {
        let place = Place::new();
        let first = place.whole("0/3");
        let second = place.part("1-3", &Place::manifest(Some("1/3")), |_| false);
        let text = place.refused(&[first, second]);
        for says in [
            "part 1/3 has 2 runs to make, first ",
            "on f, 4 queue pairs, repetition 1",
            "part 2/3 is missing",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
        assert!(!text.contains("part 0/3"), "{text}");
        assert!(!place.0.path().join("out").exists());
    }
}
