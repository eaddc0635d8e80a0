//! BPF programs that do not belong to vtepd.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Compiles programs that drop IPv4 frames with TOS 0x48 and pass all others: `somebody_else` for
/// tcx and clsact, `somebody_xdp` for XDP.
#[must_use]
pub fn somebody_else() -> PathBuf {
    compile(SOMEBODY_ELSE)
}

/// Compiles programs that make an interface one for a VLAN: `tag` for its egress tags UDP packets to
/// this port, and `untag` for its ingress removes tags.
#[must_use]
pub fn tagger(port: u16) -> PathBuf {
    compile(&TAGGER.replace("PORT", &port.to_string()))
}

const SOMEBODY_ELSE: &str = r#"
    #include <linux/bpf.h>
    #define SEC(name) __attribute__((section(name), used))
    static int look(unsigned int begin, unsigned int end, int drop, int pass) {
        const unsigned char *data = (void *)(long)begin;
        if (data + 34 > (unsigned char *)(long)end) return pass;
        return data[12] == 8 && data[13] == 0 && data[15] == 0x48 ? drop : pass;
    }
    SEC("classifier") int somebody_else(struct __sk_buff *skb) {
        return look(skb->data, skb->data_end, 2, -1);
    }
    SEC("xdp") int somebody_xdp(struct xdp_md *xdp) {
        return look(xdp->data, xdp->data_end, XDP_DROP, XDP_PASS);
    }
    char _license[] SEC("license") = "GPL";
"#;

const TAGGER: &str = r#"
    #include <linux/bpf.h>
    #define SEC(name) __attribute__((section(name), used))
    static long (*push)(void *skb, __u16 protocol, __u16 tag) = (void *)BPF_FUNC_skb_vlan_push;
    static long (*pop)(void *skb) = (void *)BPF_FUNC_skb_vlan_pop;
    SEC("classifier") int tag(struct __sk_buff *skb) {
        const unsigned char *data = (void *)(long)skb->data;
        if (data + 38 > (unsigned char *)(long)skb->data_end) return -1;
        if (data[12] == 8 && data[13] == 0 && data[23] == 17 && (data[36] << 8 | data[37]) == PORT)
            push(skb, __builtin_bswap16(0x8100), 0x2005);
        return -1;
    }
    SEC("classifier") int untag(struct __sk_buff *skb) {
        if (skb->vlan_present)
            pop(skb);
        return -1;
    }
    char _license[] SEC("license") = "GPL";
"#;

fn compile(text: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("vtepd-foreign-{}-{number}.c", std::process::id());
    let source = std::env::temp_dir().join(name);
    let object = source.with_extension("o");
    std::fs::write(&source, text).unwrap();
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let include = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let arguments = ["-O2", "-g", "-target", "bpf", &include, "-c", "-o"];
    let mut command = Command::new(clang);
    let status = command.args(arguments).arg(&object).arg(&source).status().expect("clang");
    assert!(status.success());
    std::fs::remove_file(source).unwrap();
    object
}
