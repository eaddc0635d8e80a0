//! Tests that need root, and a harness that reports those that cannot run as *ignored*, with a
//! reason. The harness of rustc can only ignore at compile time.
//!
//! ```text
//! // The target has `harness = false` in Cargo.toml, and this once:
//! root_test::main!();
//!
//! #[root_test]
//! fn needs_root() {}
//!
//! /// `frr` is a `fn() -> Result<(), String>`. The error is the reason.
//! #[root_test(needs = frr)]
//! fn needs_frr() {}
//!
//! /// It measures a rate or a gap, or changes the whole machine: nothing runs beside it.
//! #[root_test(alone)]
//! fn needs_a_quiet_machine() {}
//!
//! #[root_test]
//! #[ignore = "takes ten minutes"]
//! fn runs_with_the_flag_ignored() {}
//! ```
//!
//! The command line is that of rustc's harness. Output is never captured, and tests run one after
//! another: the program `suite` runs many at once, each in a process of its own. `--list` prints the
//! kind of each test, `root` or `alone`. Tests that need FRR come first, because they take longest.

use std::fmt::Display;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

#[doc(hidden)]
pub use inventory;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use nix::fcntl::{Flock, FlockArg};
pub use root_test_macros::root_test;

/// A test that `#[root_test]` has registered.
#[derive(Debug)]
pub struct RootTest {
    /// Path of its module, with the name of the test target first.
    pub module: &'static str,
    /// Name of its function.
    pub name: &'static str,
    /// The function.
    pub run: fn(),
    /// What it needs besides root. An error is the reason why it is ignored.
    pub needs: &'static [fn() -> Result<(), String>],
    /// Whether nothing may run beside it.
    pub alone: bool,
    /// The reason of its attribute `#[ignore]`.
    pub ignored: Option<&'static str>,
}

inventory::collect!(RootTest);

/// Defines the `main` function of a test target.
#[macro_export]
macro_rules! main {
    () => {
        fn main() -> std::process::ExitCode {
            $crate::run()
        }
    };
}

/// What [`ignore`] unwinds with.
struct Ignored(String);

/// Ends the running test, which is reported as ignored for this reason.
pub fn ignore(reason: impl Display) -> ! {
    // Unlike `panic!`, this prints nothing.
    resume_unwind(Box::new(Ignored(reason.to_string())))
}

/// Runs the registered tests that the command line selects.
pub fn run() -> ExitCode {
    let (arguments, filters) = arguments(std::env::args());
    let all = arguments.ignored || arguments.include_ignored;
    let mut tests: Vec<&RootTest> = inventory::iter::<RootTest>.into_iter().collect();
    tests.sort_by_key(|test| (test.needs.is_empty(), test.module, test.name));
    let trials = tests.into_iter().map(|test| test.trial(all)).filter(|trial| {
        let is_match = |filter: &String| match arguments.exact {
            true => trial.name() == filter,
            false => trial.name().contains(filter.as_str()),
        };
        filters.is_empty() || filters.iter().any(is_match)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// The options, and the filters. libtest-mimic takes one filter, rustc's harness any number.
fn arguments(all: impl Iterator<Item = String>) -> (Arguments, Vec<String>) {
    const WITH_VALUE: [&str; 6] =
        ["--test-threads", "--skip", "--color", "--format", "--logfile", "-Z"];
    let (mut options, mut filters) = (Vec::new(), Vec::new());
    for argument in all {
        let is_value = options.last().is_some_and(|last: &String| WITH_VALUE.contains(&&**last));
        if argument.starts_with('-') || is_value || options.is_empty() {
            options.push(argument);
        } else {
            filters.push(argument);
        }
    }
    let mut arguments = Arguments::from_iter(options);
    arguments.test_threads.get_or_insert(1);
    (arguments, filters)
}

impl RootTest {
    /// Its name without the name of the target, as rustc's harness has it.
    fn path(&self) -> String {
        match self.module.split_once("::") {
            Some((_, module)) => format!("{module}::{}", self.name),
            None => self.name.to_owned(),
        }
    }

    /// `all`: also tests with `#[ignore]` run.
    fn trial(&'static self, all: bool) -> Trial {
        let run = move || match self.ignored {
            Some(reason) if !all => Ok(Completion::ignored_with(reason)),
            _ => self.run(),
        };
        Trial::ignorable_test(self.path(), run)
            .with_kind(if self.alone { "alone" } else { "root" })
            .with_ignored_flag(all && self.ignored.is_some())
    }

    fn run(&self) -> Result<Completion, Failed> {
        if !nix::unistd::geteuid().is_root() {
            return Ok(Completion::ignored_with("needs root"));
        }
        if let Some(reason) = self.needs.iter().find_map(|need| need().err()) {
            return Ok(Completion::ignored_with(reason));
        }
        let _lock = lock(self.alone).map_err(|error| format!("the lock of tests: {error}"))?;
        match catch_unwind(AssertUnwindSafe(self.run)) {
            Ok(()) => Ok(Completion::Completed),
            Err(payload) => match payload.downcast::<Ignored>() {
                Ok(ignored) => Ok(Completion::ignored_with(ignored.0)),
                Err(payload) => resume_unwind(payload),
            },
        }
    }
}

/// Locks the machine for a test, across threads and processes: tests share it, unless one needs it
/// alone.
fn lock(alone: bool) -> std::io::Result<Flock<File>> {
    let path = std::env::temp_dir().join("vtepd-tests.lock");
    let file = File::options().create(true).append(true).open(path)?;
    let how = if alone { FlockArg::LockExclusive } else { FlockArg::LockShared };
    Ok(Flock::lock(file, how).map_err(|(_, errno)| errno)?)
}
