//! A BPF program that redirects each frame of a link to another link, and does nothing else.

use std::process::{Command, Stdio};

use fabric::Namespace;

use crate::Error;

/// The program. `TO` is the index of the other link.
const SOURCE: &str = r#"
#include <linux/bpf.h>
static long (*redirect)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect;
__attribute__((section("classifier"), used)) int entry(struct __sk_buff *skb)
{
    return redirect(TO, 0);
}
"#;

/// Attaches the program at the ingress of `from`.
///
/// # Errors
/// If it cannot be compiled or attached.
pub(crate) fn attach(at: &Namespace, from: &str, to: &str) -> Result<(), Error> {
    let index = at.enter(|| nix::net::if_::if_nametoindex(to))??;
    let folder = std::env::temp_dir().join(format!("testbed-redirect-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (source, object) = (folder.join("redirect.c"), folder.join("redirect.o"));
    let attached = compile(&source, &object, index).and_then(|()| {
        at.run(&["tc", "qdisc", "add", "dev", from, "clsact"])?;
        let object = object.to_str().ok_or("the temporary folder is not UTF-8")?;
        at.run(&[
            "tc",
            "filter",
            "add",
            "dev",
            from,
            "ingress",
            "bpf",
            "da",
            "obj",
            object,
            "sec",
            "classifier",
        ])?;
        Ok(())
    });
    std::fs::remove_dir_all(&folder)?;
    attached
}

/// Removes the program, if it is there.
///
/// # Errors
/// If the namespace cannot be entered.
pub(crate) fn detach(at: &Namespace, from: &str) -> Result<(), Error> {
    let mut tc = Command::new("tc");
    tc.args(["qdisc", "del", "dev", from, "clsact"]).stdout(Stdio::null()).stderr(Stdio::null());
    // It fails if there is none.
    at.spawn(&mut tc)?.child_mut().map(|child| child.wait()).transpose()?;
    Ok(())
}

fn compile(source: &std::path::Path, object: &std::path::Path, index: u32) -> Result<(), Error> {
    std::fs::write(source, SOURCE)?;
    let include = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let output = Command::new("clang")
        .args(["-O2", "-target", "bpf", "-I", &include, &format!("-DTO={index}"), "-c"])
        .args([source, std::path::Path::new("-o"), object])
        .output()
        .map_err(|error| format!("clang: {error}: install the package clang"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("clang: {}", String::from_utf8_lossy(&output.stderr)).into())
}
