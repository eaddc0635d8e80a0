use std::io::Write;

use clap::Parser as _;
use path::Policy;

use super::*;

/// Loads a configuration from this text and these flags.
pub(crate) fn load(text: &str, flags: &[&str]) -> Result<Configuration, ConfigurationError> {
    let (process, thread) = (std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(format!("vtepd-config-{process}-{thread:?}.toml"));
    std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
    let path_text = path.to_string_lossy().into_owned();
    let arguments = ["vtepd", "--config", &path_text].into_iter().chain(flags.iter().copied());
    let result = Configuration::load(&Arguments::parse_from(arguments));
    std::fs::remove_file(path).unwrap();
    result
}

#[test]
fn spraying_has_a_scheme_and_an_order() {
    let of = |section: &str| {
        let policy = "[entropy]\npolicy = \"spray\"\n";
        load(&format!("{policy}[probing]\nkey = \"0123456789abcdef\"\n[spraying]\n{section}"), &[])
    };
    let options = |section| of(section).unwrap().probing.unwrap().spray.unwrap();
    let default = options("");
    assert_eq!((default.scheme.name(), default.restores_order), ("prime-like", true));
    let other = options("scheme = \"bitmap\"\norder = \"none\"\nmarks = \"most\"\n");
    assert_eq!((other.scheme.name(), other.restores_order), ("bitmap", false));
    assert!(other.hides_marks && !default.hides_marks);
    assert!(options("order = \"psn\"\n").restores_order);
    for wrong in ["scheme = \"ecmp\"\n", "scheme = \"prime\"\n", "order = \"fifo\"\n"] {
        let error = of(wrong).unwrap_err().to_string();
        assert!(error.contains("prime-like") || error.contains("psn"), "{error}");
    }
    let error = load("[entropy]\npolicy = \"spray\"\n", &[]).unwrap_err().to_string();
    assert!(error.contains("qp-pin and spray need a key"), "{error}");
}

#[test]
fn an_empty_file_takes_everything_over() {
    let configuration = load("", &[]).unwrap();
    assert_eq!(configuration.settings, Settings::default());
    assert_eq!(configuration.fpm.address, Some(fpm::DEFAULT_ADDRESS));
    assert_eq!(configuration.metrics, METRICS_DEFAULT);
}

#[test]
fn a_vni_inherits_the_default_and_flags_win_over_both() {
    let text = "[entropy]\npolicy = \"qp-bins\"\nbins = 8\nseed = 3\n[vni.10020]\nbins = 2\n";
    let settings = load(text, &["--source-ports", "50000-50009"]).unwrap().settings;
    assert_eq!(settings.seed, 3);
    assert_eq!((settings.default.policy, settings.default.bins.get()), (Policy::QpBins, 8));
    let own = settings.of(Vni::try_from(10020).unwrap());
    assert_eq!(
        (own.policy, own.bins.get(), own.source_ports.to_string().as_str()),
        (Policy::QpBins, 2, "50000-50009")
    );
}

#[test]
fn the_flow_label_is_set_for_all_vnis_or_for_one() {
    use FlowLabelSource::{Netdev, SourcePort};
    let text =
        "[entropy]\nflow-label = \"netdev\"\n[vni.5]\n[vni.6]\nflow-label = \"source-port\"\n";
    for (text, flags, expected) in [
        ("", &[][..], [SourcePort; 3]),
        (text, &[], [Netdev, Netdev, SourcePort]),
        (text, &["--flow-label", "netdev"], [Netdev; 3]),
        ("", &["--flow-label", "netdev"], [Netdev; 3]),
    ] {
        let settings = load(text, flags).unwrap().settings;
        let of = |vni: u32| settings.of(vni.try_into().unwrap()).flow_label;
        assert_eq!([of(4), of(5), of(6)], expected, "{text:?} {flags:?}");
    }
}

#[test]
fn the_bypass_and_gso_are_on_by_default() {
    let off = "[takeover]\nbridge-bypass = false\n";
    for (text, flags, on) in [
        ("", &[][..], true),
        (off, &[], false),
        (off, &["--bridge-bypass"], true),
        ("", &["--no-bridge-bypass"], false),
        ("[takeover]\nbridge-bypass = true\n", &["--no-bridge-bypass"], false),
        ("", &["--no-bridge-bypass", "--bridge-bypass"], true),
        ("", &["--bridge-bypass", "--no-bridge-bypass"], false),
        ("", &["--no-bridge-bypass", "--no-bridge-bypass"], false),
    ] {
        assert_eq!(load(text, flags).unwrap().settings.bypass, on, "{text:?} {flags:?}");
        let named: Vec<String> =
            flags.iter().map(|flag| flag.replace("bridge-bypass", "gso")).collect();
        let (text, flags) =
            (text.replace("bridge-bypass", "gso"), named.iter().map(String::as_str));
        let gso = load(&text, &flags.collect::<Vec<_>>()).unwrap().worker.gso;
        assert_eq!(gso, on, "{text:?} {named:?}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (text, word) in [
        ("[entropy]\npolicy = \"qp-spray\"", "entropy.policy"),
        ("[entropy]\nsource-ports = \"9-1\"", "entropy.source-ports"),
        ("[entropy]\nbins = 0", "entropy.bins"),
        ("[entropy]\npolicy = \"qp-bins\"\nbins = 9\nsource-ports = \"50000-50007\"", "9"),
        ("[takeover]\nvnis = [0]", "takeover.vnis"),
        ("[vni.x]\n", "vni.x"),
        ("[vni.5]\nttl = 0\n", "vni.5.ttl"),
        ("[vni.10]\n[vni.010]\n", "another table has VNI 10 already"),
        ("[vni.5]\naddresses = 1000001\n", "vni.5.addresses: at most 1000000"),
        ("[learning]\ntotal = 1000001\n", "learning.total"),
        ("[learning]\nmoves = 0\n", "learning.moves"),
        ("[takover]\n", "takover"),
        ("[fpm]\nusers = [\"no such user\"]\n", "fpm.users: there is no user 'no such user'"),
        ("[api]\nlisten = \"leaf1\"\n", "'leaf1' is no socket"),
        ("[probing]\ndetector = \"bfd\"\n", "probing.detector: BFD over VXLAN was removed; remove"),
    ] {
        let error = load(text, &[]).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("vtepd-config-"), "{text}: {error}");
    }
}

#[test]
fn ranges_are_named_and_types_of_the_program_are_not() {
    let standalone = "[[standalone]]\nvni = 10\nlocal = \"10.0.0.1\"\n";
    for (text, expected) in [
        ("[entropy]\nbins = 100000", "integer `100000`, expected a number from 0 to 65535"),
        ("[entropy]\nbins = \"many\"", "expected a number from 0 to 65535"),
        ("[vni.5]\nttl = 256", "expected a number from 0 to 255"),
        ("[fpm]\nstale-time = -3", "expected a number from 0 on"),
        ("[takeover]\nvnis = [-1]", "expected a number from 0 to 4294967295"),
        ("entropy = 5", "expected a table"),
        (&format!("{standalone}ports = [5]"), "expected a port: { interface = \"NAME\" }"),
        (&format!("{standalone}udp-port = 70000\nports = []"), "expected a number from 0 to 65535"),
    ] {
        let error = load(text, &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn flags_and_keys_go_by_their_names() {
    let said = |text: &str, flags: &[&str]| load(text, flags).unwrap_err().to_string();
    let narrow = "[entropy]\npolicy = \"qp-bins\"\nsource-ports = \"50000-50001\"\nbins = 2\n";
    let error = said(narrow, &["--bins", "3"]);
    assert!(
        error.starts_with("--bins with /") && error.contains("entropy.bins: 3 bins"),
        "{error}"
    );
    let flags = ["vtepd", "--policy", "qp-bins", "--source-ports", "5-6"];
    let error = Configuration::load(&Arguments::parse_from(flags)).unwrap_err().to_string();
    assert!(error.starts_with("--policy --source-ports: 4 bins"), "{error}");
    for (flag, value) in
        [("--bins", "0"), ("--policy", "least-load"), ("--source-ports", "9-1"), ("--vni", "0")]
    {
        let error = Arguments::try_parse_from(["vtepd", flag, value]).unwrap_err().to_string();
        assert!(error.contains(&format!("'{value}' for '{flag} <")), "{error}");
    }
}

#[test]
fn help_shows_the_defaults() {
    // Wider than any line.
    let mut command = <Arguments as clap::CommandFactory>::command().term_width(1000);
    let help = command.render_help().to_string();
    let configuration = load("", &[]).unwrap();
    let VniSettings { policy, bins, source_ports, .. } = configuration.settings.default;
    for (flag, default) in [
        ("--vni", "every VNI found".to_owned()),
        ("--exclude", "none".to_owned()),
        ("--policy", policy.to_string()),
        ("--bins", bins.to_string()),
        ("--seed", configuration.settings.seed.to_string()),
        ("--source-ports", source_ports.to_string()),
        ("--hook", format!("{:?}", configuration.hook).to_lowercase()),
        ("--fpm-listen", configuration.fpm.address.unwrap().to_string()),
        ("--metrics-listen", configuration.metrics.to_string()),
        ("--api-listen", configuration.api.unwrap().to_string()),
        ("--output", "table".to_owned()),
    ] {
        let line = help.lines().find(|line| line.contains(&format!("{flag} <")));
        let line = line.unwrap_or_else(|| panic!("no {flag} in\n{help}"));
        assert!(line.contains(&format!("[default: {default}]")), "{flag}: {line}");
    }
}

#[test]
fn what_may_be_learned_is_limited_as_configured() {
    let text = "[learning]\naddresses = 7\ntotal = 8\nvteps = 9\nmoves = 10\n[vni.5]\naddresses = 0\n[vni.6]\n";
    let settings = load(text, &[]).unwrap().settings;
    assert_eq!(settings.learning, LearnLimits { total: 8, vteps: 9, moves: 10 });
    let addresses = [4, 5, 6].map(|vni| settings.of(Vni::try_from(vni).unwrap()).addresses);
    assert_eq!(addresses, [7, 0, 7]);
    let default = load("[learning]\nvteps = 9\n", &[]).unwrap().settings;
    assert_eq!(default.learning, LearnLimits { vteps: 9, ..LearnLimits::default() });
    assert_eq!(default.default.addresses, VniSettings::default().addresses);
}

#[test]
fn frames_wait_for_a_hung_worker_as_long_as_configured() {
    let limit = |text: &str| load(text, &[]).map(|configuration| configuration.stall_limit);
    assert_eq!(limit("").unwrap(), STALL_LIMIT);
    assert_eq!(limit("[takeover]\nstall-limit-ms = 50").unwrap(), Duration::from_millis(50));
    for wrong in ["0", "19", "10001"] {
        let text = format!("[takeover]\nstall-limit-ms = {wrong}");
        let error = limit(&text).unwrap_err().to_string();
        assert!(
            error.contains("takeover.stall-limit-ms: frames may wait for 20 to 10000 ms"),
            "{error}"
        );
    }
}

#[test]
fn there_are_as_many_workers_as_configured() {
    let workers = |text: &str, flags: &[&str]| {
        load(text, flags).map(|configuration| configuration.worker.workers)
    };
    assert_eq!(workers("", &[]).unwrap(), 1);
    assert_eq!(workers("[takeover]\nworkers = 8", &[]).unwrap(), 8);
    assert_eq!(workers("[takeover]\nworkers = 8", &["--workers", "2"]).unwrap(), 2);
    for (text, flags, place) in [
        ("[takeover]\nworkers = 9", &[][..], "takeover.workers"),
        ("[takeover]\nworkers = 0", &[], "takeover.workers"),
        ("", &["--workers", "0"], "--workers"),
    ] {
        let error = workers(text, flags).unwrap_err().to_string();
        assert!(error.contains(&format!("{place}: there may be 1 to 8 workers")), "{error}");
    }
}

#[test]
fn flows_come_back_by_default() {
    let rebalance = |text| load(text, &[]).unwrap().settings.rebalance;
    assert_eq!(rebalance(""), Rebalance::On);
    assert_eq!(rebalance("[underlay]\nrebalance = true"), Rebalance::On);
    assert_eq!(rebalance("[underlay]\nrebalance = false"), Rebalance::Off);
}

#[test]
fn fpm_can_be_turned_off_and_moved() {
    assert_eq!(load("[fpm]\nenabled = false", &[]).unwrap().fpm.address, None);
    assert_eq!(load("", &["--no-fpm"]).unwrap().fpm.address, None);
    let moved = load("[fpm]\nlisten = \"127.0.0.1:2621\"", &[]).unwrap().fpm.address;
    assert_eq!(moved, Some("127.0.0.1:2621".parse().unwrap()));
}

#[test]
fn what_zebra_said_is_kept_as_long_as_configured() {
    let kept = |text: &str| {
        load(text, &[]).map(|configuration| configuration.settings.stale_time.0.as_secs())
    };
    assert_eq!(kept("").unwrap(), 120);
    assert_eq!(kept("[fpm]\nstale-time = 0").unwrap(), 0);
    let error = kept("[fpm]\nstale-time = 3601").unwrap_err().to_string();
    assert!(error.contains("fpm.stale-time: what zebra said is kept for 0 to 3600 s"), "{error}");
}

#[test]
fn the_api_can_be_turned_off_and_moved() {
    assert_eq!(load("", &[]).unwrap().api, Some(Address::default()));
    assert_eq!(load("[api]\nenabled = false", &[]).unwrap().api, None);
    assert_eq!(load("[api]\nlisten = \"@x\"", &["--no-api"]).unwrap().api, None);
    let moved = load("[api]\nlisten = \"/run/leaf1.sock\"", &[]).unwrap().api;
    assert_eq!(moved, Some(Address::Path("/run/leaf1.sock".into())));
    let moved = load("[api]\nenabled = false", &["--api-listen", "@leaf1"]).unwrap().api;
    assert_eq!(moved, Some(Address::Abstract("leaf1".to_owned())));
}

#[test]
fn users_who_may_connect_by_fpm_are_configured() {
    let file = "[fpm]\nusers = [\"daemon\", 4242]\n";
    let anybody = "[fpm]\nusers = [\"anybody\"]\n";
    // `daemon` has the number 1. The user `frr` may not exist here.
    let frr = nix::unistd::User::from_name("frr").unwrap().map(|user| user.uid.as_raw());
    let default: Vec<u32> = frr.into_iter().collect();
    for (text, flags, named, is_anybody) in [
        ("", &[][..], default.as_slice(), false),
        (file, &[], &[1, 4242], false),
        (anybody, &[], &[], true),
        (file, &["--fpm-user", "7", "--fpm-user", "daemon"], &[1, 7], false),
        (file, &["--fpm-user", "anybody"], &[], true),
    ] {
        let named = named.iter().copied().chain([0]).collect();
        let expected = fpm::Users { named, anybody: is_anybody };
        assert_eq!(load(text, flags).unwrap().fpm.users, expected, "{text} {flags:?}");
    }
    let error = load("", &["--fpm-user", "no such user"]).unwrap_err().to_string();
    assert!(error.contains("--fpm-user: there is no user 'no such user'"), "{error}");
}
