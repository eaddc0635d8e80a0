//! How many instructions the verifier processes for each program. It refuses a program above one
//! million, and each path through a program costs time when vtepd starts. Functions that are not
//! static are verified once, and not for each path that leads to them.

use aya::EbpfLoader;
use aya::programs::SchedClassifier;
use root_test::root_test;

use crate::offload::kernel;

/// Limits above what Linux 6.18 counts, and above what 6.1 counts. Other programs stay below 250.
const LIMITS: [(&str, [u32; 2]); 4] = [
    ("steer_port", [24_000, 145_000]),
    ("steer_punt", [250, 300]),
    ("steer_uplink", [20_000, 22_000]),
    ("steer_vxlan", [24_000, 180_000]),
];

#[root_test]
fn programs_are_verified_within_their_limits() {
    let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steering.bpf.o"));
    let mut ebpf = EbpfLoader::new().load(object).unwrap();
    let mut exceeded = Vec::new();
    for (name, program) in ebpf.programs_mut() {
        let program: &mut SchedClassifier = program.try_into().unwrap();
        program.load().unwrap();
        let Some(count) = program.info().unwrap().verified_instruction_count() else {
            root_test::ignore("the kernel does not tell the number of verified instructions");
        };
        let is_old = usize::from(kernel() < (6, 18));
        let limit = LIMITS.iter().find(|(of, _)| *of == name).map_or(250, |(_, all)| all[is_old]);
        println!("{name}: {count} verified instructions, at most {limit}");
        if count > limit {
            exceeded.push(name.to_owned());
        }
    }
    assert!(exceeded.is_empty(), "more instructions than before: {exceeded:?}");
}
