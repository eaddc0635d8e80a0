//! `lab allreduce` between hosts: real sums over a circuit that loses packets, and its requests.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use fabric::netns::Namespace;
use fabric::process::Process;
use root_test::root_test;

use super::workload::{Sites, impairment};

const ADDRESSES: &str = "192.0.2.1,192.0.2.2,192.0.2.3,192.0.2.4";
const CAPACITY: u64 = 4 << 20;

/// A process on a host. Drop ends it.
struct Member {
    process: Process,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    memory: PathBuf,
}

impl Member {
    fn new(host: &Namespace, folder: &Path, rank: usize) -> Self {
        let memory = folder.join(format!("{}-{rank}", host.name()));
        std::fs::File::create(&memory).unwrap().set_len(CAPACITY).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        command.args(["allreduce", "--queue-pairs", "5", "--addresses", ADDRESSES]);
        command.args(["--limit", "60", "--rank", &rank.to_string()]).arg("--memory").arg(&memory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = host.spawn(&mut command).unwrap();
        let child = process.child_mut().unwrap();
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { process, requests, answers, memory }
    }

    fn write(&self, numbers: &[f32]) {
        use std::os::unix::fs::FileExt as _;
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let file = std::fs::File::options().write(true).open(&self.memory).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
    }

    fn read(&self, count: usize) -> Vec<f32> {
        let bytes = std::fs::read(&self.memory).unwrap();
        bytes.as_chunks::<4>().0[..count].iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    }

    fn ask(&mut self, request: &str) {
        writeln!(self.requests.as_ref().unwrap(), "{request}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Closes the standard input, and waits for the end. Returns the standard error if it failed.
    fn end(&mut self) -> Result<(), String> {
        drop(self.requests.take());
        let status = loop {
            match self.process.try_wait().unwrap() {
                Some(status) => break status,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let mut said = String::new();
        let errors = self.process.child_mut().and_then(|child| child.stderr.take());
        errors.unwrap().read_to_string(&mut said).unwrap();
        if status.success() { Ok(()) } else { Err(said) }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.memory);
    }
}

#[root_test(alone)]
fn sums_are_exact_over_a_circuit_that_loses_packets() {
    let (sites, folder) = (Sites::new("sum"), std::env::temp_dir());
    sites.with_circuit(impairment(0.01), || {
        let mut members: Vec<Member> = sites
            .hosts
            .iter()
            .enumerate()
            .map(|(rank, host)| Member::new(host, &folder, rank))
            .collect();
        members.iter_mut().for_each(|member| assert_eq!(member.answer(), "ready"));
        // Integers have one sum, whatever the order.
        for (count, round) in [(1 << 20, 1), (0, 2), (1, 3), (777, 4), (300_000, 5)] {
            let number = |rank: usize, at: usize| ((at * 7 + round * 5) % 1000 * (rank + 1)) as f32;
            for (rank, member) in members.iter_mut().enumerate() {
                member.write(&(0..count).map(|at| number(rank, at)).collect::<Vec<_>>());
                member.ask(&(count * 4).to_string());
            }
            let sums: Vec<f32> =
                (0..count).map(|at| (0..4).map(|rank| number(rank, at)).sum()).collect();
            for (rank, member) in members.iter_mut().enumerate() {
                assert_eq!(member.answer(), "done", "{rank} {count}");
                assert!(member.read(count) == sums, "{rank} {count}");
            }
        }
        // All end with their input; a request that cannot be served says why.
        members[3].ask("4194308");
        assert_eq!(members[3].answer(), "");
        let wrong = members[3].end().unwrap_err();
        assert!(wrong.contains("expected a number of bytes up to 4194304"), "{wrong}");
        members[..3].iter_mut().for_each(|member| member.end().unwrap());
    });
}

#[root_test]
fn a_rank_that_the_ring_does_not_have_is_refused() {
    let sites = Sites::new("rank");
    let mut member = Member::new(&sites.hosts[0], &std::env::temp_dir(), 4);
    let wrong = member.end().unwrap_err();
    assert!(wrong.contains("the rank is 4: use 0 to 3"), "{wrong}");
}
