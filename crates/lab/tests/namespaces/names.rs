//! A name in a file or on the command line never leads out of the lab's own directory. Each story
//! runs in namespaces with its own `/run`, `/tmp` and abstract sockets.

use std::process::{Command, Output};

use root_test::root_test;

/// Runs a shell script with its own `/run` and `/tmp`. `$lab` is the program. The script prints a
/// list of everything there at its end.
fn alone(script: &str) -> Output {
    // The checkout may lie below /tmp.
    let setup = "set -eu; mount -t tmpfs t /mnt; cp \"$lab\" /mnt/lab; lab=/mnt/lab
        mount -t tmpfs t /run; mount -t tmpfs t /tmp
        mkdir -p /run/netns /run/other /tmp/x; touch /run/other/precious /tmp/x/precious
        topology() {
            printf 'name: %s\\ntopology: {nodes: {%s: {kind: linux}}}\\n' \"$1\" \"$2\" >/tmp/t.yml
        }";
    let script = format!("{setup}\n{script}\nset +e; find /run /tmp | sort");
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--propagation", "private", "sh", "-c", &script]);
    command.env("lab", env!("CARGO_BIN_EXE_lab")).output().unwrap()
}

/// The list of files at the end, after the precious ones were found in it.
fn files(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    for file in ["/run/other/precious", "/tmp/x/precious", "/run/netns"] {
        assert!(text.lines().any(|line| line == file), "{file} is gone: {output:?}");
    }
    text
}

/// Names that are no component of a path, and what is said about them.
fn bad() -> Vec<String> {
    let long = "x".repeat(300);
    let bad = [".", "..", "../../tmp/x", "../other", "/tmp/x", "-x", "a b", "a\u{1b}[31m", &long];
    bad.map(str::to_owned).into()
}

#[root_test]
fn a_fabric_cannot_have_the_name_of_another_directory() {
    for name in bad() {
        // On the command line of each command that takes one.
        for command in [
            "up /tmp/t.yml --no-wait --name=\"$name\"",
            "down -- \"$name\"",
            "inspect --name=\"$name\"",
            "new /tmp/new --name=\"$name\"",
        ] {
            let script = format!(
                "name='{name}'; topology good r1; ! \"$lab\" {command} || echo ACCEPTED: {command}"
            );
            let output = alone(&script);
            let files = files(&output);
            assert!(!files.contains("ACCEPTED"), "{name}: {files}");
            assert!(!files.contains("vtepd-lab") && !files.contains("/tmp/new"), "{files}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("is no name") || name.starts_with('-'), "{name}: {said}");
        }
    }
}

#[root_test]
fn a_topology_cannot_name_another_directory() {
    // As a quoted scalar of YAML, so that control characters are there as such.
    let quoted = |name: &str| format!("\"{}\"", name.replace('\u{1b}', "\\u001b"));
    for name in bad().into_iter().chain([String::new()]) {
        for (fabric, node) in [(quoted(&name), "r1".to_owned()), ("good".to_owned(), quoted(&name))]
        {
            let script = format!(
                "topology '{fabric}' '{node}'; cat /tmp/t.yml >&2
                ! \"$lab\" up /tmp/t.yml --no-wait || echo ACCEPTED"
            );
            let output = alone(&script);
            let files = files(&output);
            assert!(!files.contains("ACCEPTED") && !files.contains("vtepd-lab"), "{files}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("is no name"), "{fabric} {node}: {said}");
            assert!(!said.contains('\u{1b}'), "{said:?}");
        }
    }
}

#[root_test]
fn a_directory_that_the_lab_did_not_make_stays() {
    for plant in ["ln -s /run/other /run/vtepd-lab/good", "mv /run/other /run/vtepd-lab/good"] {
        let output = alone(&format!(
            "mkdir /run/vtepd-lab; {plant}; topology good r1
            ! \"$lab\" up /tmp/t.yml --no-wait || echo ACCEPTED
            ! \"$lab\" down good || echo ACCEPTED
            [ -e /run/other ] || mv /run/vtepd-lab/good /run/other"
        ));
        let (files, said) = (files(&output), String::from_utf8_lossy(&output.stderr));
        assert!(!files.contains("ACCEPTED") && said.contains("is not lab's"), "{files}{said}");
    }
    // The base itself is somebody else's.
    let output = alone(
        "ln -s /run/other /run/vtepd-lab; topology precious r1
        ! \"$lab\" up /tmp/t.yml --no-wait || echo ACCEPTED",
    );
    assert!(!files(&output).contains("ACCEPTED"), "{output:?}");
    // A link that a process of a node left is not followed.
    let output = alone(
        "topology good r1; \"$lab\" up /tmp/t.yml --no-wait
        ln -s /run/other /run/vtepd-lab/good/nodes/r1/link
        \"$lab\" down good; [ ! -e /run/vtepd-lab ]; echo DOWN",
    );
    assert!(files(&output).contains("DOWN"), "{output:?}");
}

#[root_test]
fn a_bind_cannot_create_files_outside_of_its_node() {
    let output = alone(
        "cat >/tmp/t.yml <<END
name: good
topology: {nodes: {r1: {kind: linux, binds: ['t.yml:/etc/frr/../../../../../tmp/x/precious']}}}
END
        ! \"$lab\" up /tmp/t.yml --no-wait || echo ACCEPTED
        [ ! -s /tmp/x/precious ]",
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!files(&output).contains("ACCEPTED") && said.contains("without '..'"), "{said}");
}
