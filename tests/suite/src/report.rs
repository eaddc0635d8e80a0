//! What the end of the output says, and the files in `target/suite`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::job::Job;
use crate::outcome::{Outcome, Test, Verdict};

/// How many slow tests, and how many that use the CPU for long, are named.
const SLOWEST: usize = 30;
/// How much of a failed test's log the end repeats, in lines.
const EXCERPT: usize = 12;

/// The results of a run. `report.json` has it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    seconds: f64,
    passed: usize,
    failed: usize,
    ignored: usize,
    /// Names of tests that passed at the second try only.
    second_tries: Vec<String>,
    /// All tests that have a name; the slowest first.
    tests: Vec<Test>,
    /// What ran as one process; what used a core for longest first.
    jobs: Vec<Cost>,
    /// What did not run, each as `NAME: REASON`.
    not_run: Vec<String>,
    /// What failed, with the end of its log.
    #[serde(skip)]
    failures: Vec<(String, String)>,
    /// The same for a first try.
    #[serde(skip)]
    first_failures: Vec<(String, String)>,
}

/// What a job took.
#[derive(Debug, Serialize)]
struct Cost {
    name: String,
    /// From start to end.
    seconds: f64,
    /// How long it used a core.
    cpu_seconds: f64,
}

/// A line of `history.jsonl`.
#[derive(Debug, Serialize, Deserialize)]
struct Run {
    /// Seconds since 1970.
    time: u64,
    passed: usize,
    failed: usize,
    seconds: f64,
    second_tries: Vec<String>,
}

impl Report {
    pub(crate) fn new(done: &[(Job, Outcome)], took: Duration) -> Self {
        let mut report = Self {
            seconds: took.as_secs_f64(),
            passed: 0,
            failed: 0,
            ignored: 0,
            second_tries: Vec::new(),
            tests: Vec::new(),
            jobs: Vec::new(),
            not_run: Vec::new(),
            failures: Vec::new(),
            first_failures: Vec::new(),
        };
        for (job, outcome) in done {
            report.add(job, outcome);
        }
        report.tests.sort_by(|a, b| b.seconds.unwrap_or(0.0).total_cmp(&a.seconds.unwrap_or(0.0)));
        report.jobs.sort_by(|a, b| b.cpu_seconds.total_cmp(&a.cpu_seconds));
        report.not_run.sort();
        report
    }

    fn add(&mut self, job: &Job, outcome: &Outcome) {
        let [passed, failed, ignored] = outcome.unnamed;
        self.passed += passed;
        self.failed += failed;
        self.ignored += ignored;
        for test in &outcome.tests {
            match &test.result {
                Verdict::Passed => self.passed += 1,
                Verdict::Failed => self.failed += 1,
                Verdict::Ignored(reason) => {
                    self.ignored += 1;
                    let name = test.name.rsplit(' ').next().unwrap_or_default();
                    self.not_run.push(format!("{name}: {reason}"));
                }
            }
        }
        self.not_run.extend(outcome.skipped.iter().cloned());
        let has_failed = outcome.tests.iter().any(|test| test.result == Verdict::Failed);
        if !outcome.is_success && !has_failed && failed == 0 {
            // A command that has no tests, or died.
            self.failed += 1;
        }
        self.tests.extend(outcome.tests.iter().cloned());
        // A command as a whole, too, but a target only where its tests have no times.
        if outcome.tests.iter().all(|test| test.seconds.is_none()) {
            let (name, seconds) = (job.name.clone(), Some(outcome.seconds));
            let result = if outcome.is_passed() { Verdict::Passed } else { Verdict::Failed };
            self.tests.push(Test { name, seconds, result });
        }
        if let Some(cpu_seconds) = outcome.cpu {
            self.jobs.push(Cost { name: job.name.clone(), seconds: outcome.seconds, cpu_seconds });
        }
        if !outcome.is_passed() {
            self.failures.push((job.name.clone(), excerpt(&outcome.log)));
        }
        if let Some(first) = &outcome.first {
            if outcome.is_passed() {
                self.second_tries.push(job.name.clone());
            }
            self.first_failures.push((job.name.clone(), excerpt(&first.log)));
        }
    }

    /// Whether something ran, and nothing failed.
    pub(crate) fn is_passed(&self) -> bool {
        self.failed == 0 && self.failures.is_empty() && self.passed > 0
    }

    pub(crate) fn print(&self) {
        println!("\nThe slowest:");
        for test in self.tests.iter().take(SLOWEST) {
            println!("  {:6.1} s  {}", test.seconds.unwrap_or(0.0), test.name);
        }
        let sum: f64 = self.jobs.iter().map(|job| job.cpu_seconds).sum();
        println!("\nThe most of {sum:.0} s of CPU:");
        for job in self.jobs.iter().take(SLOWEST) {
            println!("  {:6.1} s  {}", job.cpu_seconds, job.name);
        }
        println!();
        for line in &self.not_run {
            println!("ignored: {line}");
        }
        for (name, log) in &self.first_failures {
            if self.second_tries.contains(name) {
                println!("SECOND TRY: {name} failed first, and then passed alone\n{log}");
            }
        }
        for (name, log) in &self.failures {
            println!("FAILED: {name}\n{log}");
        }
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.ignored);
    }

    /// Writes `report.json` and `not-run`, adds a line to `history.jsonl`, and prints which tests
    /// needed a second try in the runs that it has.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Error> {
        std::fs::write(folder.join("report.json"), serde_json::to_vec_pretty(self)?)?;
        let mut not_run = self.not_run.join("\n");
        not_run.push('\n');
        std::fs::write(folder.join("not-run"), not_run)?;
        let path = folder.join("history.jsonl");
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let run = Run {
            time: time.unwrap_or_default().as_secs(),
            passed: self.passed,
            failed: self.failed,
            seconds: self.seconds,
            second_tries: self.second_tries.clone(),
        };
        let mut history = std::fs::File::options().create(true).append(true).open(&path)?;
        writeln!(history, "{}", serde_json::to_string(&run)?)?;
        print!("{}", summary(&std::fs::read_to_string(&path)?));
        Ok(())
    }
}

/// Which tests needed a second try, and how often.
fn summary(history: &str) -> String {
    let runs: Vec<Run> =
        history.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in runs.iter().flat_map(|run| &run.second_tries) {
        *counts.entry(name).or_default() += 1;
    }
    let sum: usize = counts.values().sum();
    let mut text = format!("{sum} second tries in {} runs here\n", runs.len());
    for (name, count) in counts {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {count} x {name}");
    }
    text
}

/// The line with the panic and what follows it, or the last lines.
fn excerpt(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let is_cause = |line: &&str| line.contains("panicked at") || line.starts_with("error");
    let last = lines.len().saturating_sub(EXCERPT);
    let start = lines.iter().position(is_cause).unwrap_or(last);
    let part = lines.iter().skip(start).take(EXCERPT);
    part.fold(String::new(), |text, line| {
        let cut: String = line.chars().take(300).collect();
        text + "    " + &cut + "\n"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_tries_are_counted_over_runs() {
        let run = |names: &[&str]| Run {
            time: 1,
            passed: 2,
            failed: 0,
            seconds: 1.0,
            second_tries: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let lines = [run(&["a"]), run(&[]), run(&["a", "b"])]
            .map(|run| serde_json::to_string(&run).unwrap());
        assert_eq!(summary(&lines.join("\n")), "3 second tries in 3 runs here\n  2 x a\n  1 x b\n");
    }

    #[test]
    fn a_job_that_dies_without_a_result_fails_the_run() {
        let job = Job::command("python", "false");
        let outcome = Outcome::of_tests("", false, "Killed\n", 0.1);
        let ran = Outcome::of_tests("", true, "test a ... ok\n", 0.1);
        let report = Report::new(&[(job.clone(), outcome), (job, ran)], Duration::ZERO);
        assert_eq!((report.passed, report.failed), (1, 1));
        assert!(!report.is_passed());
    }

    #[test]
    fn a_second_try_that_passes_is_named_and_does_not_fail_the_run() {
        let job = Job::command("x", "true");
        let first = Outcome::of_tests("", false, "test a ... FAILED\n", 0.1);
        let mut second = Outcome::of_tests("", true, "test a ... ok\n", 0.1);
        second.first = Some(Box::new(first));
        let report = Report::new(&[(job, second)], Duration::ZERO);
        assert!(report.is_passed());
        assert_eq!(report.second_tries, ["x"]);
    }
}
