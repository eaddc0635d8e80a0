//! What a job did, read from what it printed.

use serde::Serialize;

/// The result of a job.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Its tests.
    pub(crate) tests: Vec<Test>,
    /// Tests that it counted but did not name, or named as the harness does not: passed, failed,
    /// ignored.
    pub(crate) unnamed: [usize; 3],
    /// Parts that did not run, each as `NAME: REASON`.
    pub(crate) skipped: Vec<String>,
    /// Whether its exit status is 0.
    pub(crate) is_success: bool,
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
    /// How long it used a core, in seconds, if that is known.
    pub(crate) cpu: Option<f64>,
    /// What it printed.
    pub(crate) log: String,
    /// The first try, if this was the second.
    pub(crate) first: Option<Box<Outcome>>,
}

/// A test that ran, or was ignored.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Test {
    /// Target and path.
    pub(crate) name: String,
    /// How long it took, in seconds, if that is known.
    pub(crate) seconds: Option<f64>,
    /// What came of it.
    pub(crate) result: Verdict,
}

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// It passed.
    Passed,
    /// It failed.
    Failed,
    /// It did not run, for this reason.
    Ignored(String),
}

impl Outcome {
    /// Of a process that ran one root test.
    pub(crate) fn of_test(name: &str, is_success: bool, log: &str, seconds: f64) -> Self {
        // A test may print what looks like a result: the harness is the last who speaks.
        let ignored = log.lines().rev().find_map(|line| {
            let (_, reason) = line.split_once("ignored (")?;
            reason.strip_suffix(')')
        });
        let counts = log.lines().rev().find_map(counts);
        let result = match (is_success, counts) {
            (true, Some([1, 0, 0])) => Verdict::Passed,
            (true, Some([0, 0, 1])) => Verdict::Ignored(ignored.unwrap_or_default().to_owned()),
            _ => Verdict::Failed,
        };
        let is_success = result != Verdict::Failed;
        let test = Test { name: name.to_owned(), seconds: Some(seconds), result };
        Self { tests: vec![test], is_success, seconds, log: log.to_owned(), ..Self::default() }
    }

    /// Of a process that ran several tests, whose names it prints. `prefix` goes before them.
    pub(crate) fn of_tests(prefix: &str, is_success: bool, log: &str, seconds: f64) -> Self {
        let tests: Vec<Test> = log.lines().filter_map(|line| test(prefix, line)).collect();
        let mut unnamed = [0; 3];
        for counted in log.lines().filter_map(counts) {
            for (sum, count) in unnamed.iter_mut().zip(counted) {
                *sum += count;
            }
        }
        for test in &tests {
            let [passed, failed, ignored] = &mut unnamed;
            let count = match test.result {
                Verdict::Passed => passed,
                Verdict::Failed => failed,
                Verdict::Ignored(_) => ignored,
            };
            *count = count.saturating_sub(1);
        }
        let skipped = log.lines().filter_map(|line| line.strip_prefix("SKIPPED "));
        let skipped = skipped.map(str::to_owned).collect();
        let log = log.to_owned();
        Self { tests, unnamed, skipped, is_success, seconds, log, ..Self::default() }
    }

    /// Whether nothing failed.
    pub(crate) fn is_passed(&self) -> bool {
        self.is_success && self.tests.iter().all(|test| test.result != Verdict::Failed)
    }
}

/// A line `test NAME ... RESULT`.
fn test(prefix: &str, line: &str) -> Option<Test> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let (result, seconds) = match result.split_once(" <") {
        Some((result, time)) => (result, time.strip_suffix("s>").and_then(|s| s.parse().ok())),
        None => (result, None),
    };
    let result = match result.trim_end() {
        "ok" => Verdict::Passed,
        "FAILED" => Verdict::Failed,
        other => {
            let reason = other.strip_prefix("ignored")?;
            Verdict::Ignored(reason.trim_start_matches(", ").to_owned())
        }
    };
    Some(Test { name: format!("{prefix}{}", name.trim_end()), seconds, result })
}

/// Passed, failed and ignored, from a line `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
fn counts(line: &str) -> Option<[usize; 3]> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut found = counts.split("; ").zip(["passed", "failed", "ignored"]).map(|(count, word)| {
        let number = count.strip_suffix(word)?;
        number.trim().parse().ok()
    });
    Some([found.next()??, found.next()??, found.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_test_has_the_result_of_the_harness() {
        let log = |result: &str| format!("\nrunning 1 test\ntest [root] x ... {result}\n");
        let ok = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out";
        let passed = Outcome::of_test("s x", true, &(log("ok") + ok), 1.5);
        assert_eq!(passed.tests.first().unwrap().result, Verdict::Passed);
        let ignored = "test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out";
        let said = log("ignored (no (such) thing)") + ignored;
        let outcome = Outcome::of_test("s x", true, &said, 0.1);
        let reason = "no (such) thing".to_owned();
        assert_eq!(outcome.tests.first().unwrap().result, Verdict::Ignored(reason));
        // It ended early, with status 0, or ran nothing.
        assert!(!Outcome::of_test("s x", true, &log("ok"), 1.0).is_passed());
        assert!(!Outcome::of_test("s x", false, &(log("ok") + ok), 1.0).is_passed());
    }

    #[test]
    fn tests_of_rustcs_harness_have_names_and_times() {
        let log = "test a::b ... ok <0.012s>\ntest c - should panic ... ok\n\
                   test d ... ignored, takes long\ntest e ... FAILED <1.000s>\n\
                   test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out\n\
                   test result: ok. 4 passed; 0 failed; 0 ignored\nSKIPPED part: not here\n";
        let outcome = Outcome::of_tests("wire ", false, log, 2.0);
        let names: Vec<&str> = outcome.tests.iter().map(|test| &*test.name).collect();
        assert_eq!(names, ["wire a::b", "wire c - should panic", "wire d", "wire e"]);
        assert_eq!(outcome.tests.first().unwrap().seconds, Some(0.012));
        assert_eq!(outcome.unnamed, [4, 0, 0]);
        assert_eq!(outcome.skipped, ["part: not here"]);
        assert!(!outcome.is_passed());
    }
}
