//! Configuration files.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::{LazyLock, Mutex};

use clap::Parser as _;
use configuration::{Arguments, Configuration, ConfigurationError};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// The configuration file, in memory.
static FILE: LazyLock<Mutex<File>> =
    LazyLock::new(|| Mutex::new(memfd_create("vtepd.toml", MFdFlags::MFD_CLOEXEC).unwrap().into()));

fn load(text: &[u8]) -> Result<Configuration, ConfigurationError> {
    let mut file = FILE.lock().unwrap();
    file.set_len(0).unwrap();
    file.rewind().unwrap();
    file.write_all(text).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Configuration::load(&Arguments::parse_from(["vtepd", "--config", &path]))
}

/// Accepted settings are in range and consistent. Errors name the file.
pub fn configuration(data: &[u8]) {
    // User names other than root would be looked up in files, and perhaps over the network.
    if data.windows(5).any(|word| word == b"owner") && !data.windows(4).any(|word| word == b"root")
    {
        return;
    }
    let configuration = match load(data) {
        Ok(configuration) => configuration,
        Err(ConfigurationError::Read { .. }) => {
            assert!(std::str::from_utf8(data).is_err(), "a text can be read");
            return;
        }
        Err(error) => {
            let explained = error.to_string();
            assert!(explained.contains("/proc/self/fd/"), "the file is named: {explained}");
            return;
        }
    };
    let Configuration { settings, standalone, worker, stall_limit, .. } = configuration;
    assert!((1..=bpf::MOST_WORKERS).contains(&worker.workers));
    assert!(stall_limit.as_millis() >= 20);
    assert!(settings.stale_time.0.as_secs() <= 3600 && settings.learning.moves > 0);
    for own in settings.vnis.values().chain([&settings.default]) {
        let together = path::Settings {
            policy: own.policy,
            bins: own.bins,
            range: own.source_ports,
            ..path::Settings::default()
        };
        assert!(path::Entropy::new(together).is_ok(), "{own:?}");
        assert!(own.ttl != Some(0) && own.addresses <= control::LearnLimits::MAX);
    }
    assert_eq!(settings.standalone.len(), standalone.vnis.len());
    for (index, vni) in standalone.vnis.iter().enumerate() {
        assert!(
            standalone.vnis[..index].iter().all(|other| other.vni != vni.vni),
            "one table for a VNI"
        );
    }
    // An unknown section is refused after any contents.
    let more = [data, b"\n[unknown-section]\n"].concat();
    assert!(load(&more).is_err());
}
