//! The pages, pictures and code that are generated: `docs/reference` from the code and from `--help` of the
//! programs, `benches/RESULTS.md` from `benches/results/*.json`, and `docs/images/demo.svg` from the
//! demo's committed figures, `crates/{api,fpm}/src/generated` from `proto`, the report of
//! `docs/guide/spraying.md` beside published claims from `benches/results/sim.json`.
//! `VTEPD_UPDATE_DOCS=1 cargo test -p vtepd-tests --test reference` writes them.
//! `docs/reference/configuration.md` is generated in `crates/configuration/src/reference.rs`.

mod bpf_maps;
mod claims;
mod control_pages;
mod drop_reasons;
mod limits;
mod metrics;
mod named_tests;
mod schemas;
mod security;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use vtepd_tests::daemon::{ctl_program, lab_program, program};

#[test]
fn both_programs_know_the_policies_of_vtepd() {
    let names = path::Policy::ALL.map(path::Policy::name).join(", ");
    let in_a_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let of_vtepctl = in_a_line(help(&ctl_program(), &["policy".to_owned(), "set".to_owned()]));
    assert!(of_vtepctl.contains(&format!("[possible values: {names}]")), "{of_vtepctl}");
    let of_lab = in_a_line(help(&lab_program(), &["policy".to_owned()]));
    assert!(of_lab.contains(&format!("[possible values: {names}, kernel]")), "{of_lab}");
}

/// The output of `program COMMANDS --help`.
fn help(program: &Path, commands: &[String]) -> String {
    let output =
        Command::new(program).args(commands).arg("--help").env("COLUMNS", "100").output().unwrap();
    assert!(output.status.success(), "{program:?} {commands:?}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// The commands that a help text lists, without `help`.
fn commands(text: &str) -> Vec<String> {
    let Some((_, list)) = text.split_once("\nCommands:\n") else { return Vec::new() };
    let rows = list.lines().take_while(|line| !line.is_empty());
    let names = rows.filter(|row| row.starts_with("  ") && !row.starts_with("   "));
    names
        .filter_map(|row| row.split_whitespace().next())
        .filter(|n| *n != "help")
        .map(str::to_owned)
        .collect()
}

fn describe(page: &mut String, program: &Path, name: &str, path: &[String]) {
    let text = help(program, path);
    let title =
        std::iter::once(name).chain(path.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
    let level = if path.is_empty() { "##" } else { "###" };
    write!(page, "\n{level} `{title}`\n\n```\n{}\n```\n", text.trim_end()).unwrap();
    for command in commands(&text) {
        describe(page, program, name, &[path, &[command]].concat());
    }
}

/// Writes a file, if `VTEPD_UPDATE_DOCS` is set, and compares it with the existing one.
fn compare(path: &str, content: impl AsRef<[u8]>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    if std::env::var_os("VTEPD_UPDATE_DOCS").is_some() {
        std::fs::write(&file, &content).unwrap();
    }
    let there = std::fs::read(&file).unwrap_or_default();
    assert!(there == content.as_ref(), "{path} is out of date: see the head of {}", file!());
}

#[test]
fn the_reference_of_the_command_line_is_up_to_date() {
    let mut page =
        "# Command line\n\nThis page is generated from `--help` of each program.\n".to_owned();
    let programs: [(PathBuf, &str); 3] =
        [(program(), "vtepd"), (ctl_program(), "vtepctl"), (lab_program(), "lab")];
    for (program, name) in programs {
        describe(&mut page, &program, name, &[]);
    }
    compare("docs/reference/cli.md", &page);
}

/// A figure with its significant digits.
fn figure(value: &serde_json::Value) -> String {
    match value.as_f64() {
        None => String::new(),
        Some(value) if value.abs() < 10.0 => format!("{value:.2}"),
        Some(value) if value.abs() < 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

#[test]
fn the_tables_of_measurements_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/results");
    let mut page = "# Results\n\nThese tables are generated from `results/*.json`. [README.md](README.md) says what a row means.\n\
        *Ratio* is vtepd's figure over kernel VXLAN's in the same run.\n"
        .to_owned();
    for (name, what) in [
        ("quick", "`benches/run system --quick`: beside kernel VXLAN"),
        (
            "forwarding",
            "`benches/run system --quick --rounds 3 --part forwarding`: of a later version",
        ),
        (
            "probing",
            "`benches/run system --quick --rounds 5 --part latency --datapath qp-pin`: what probing costs",
        ),
        (
            "checksum",
            "`benches/run system --quick --rounds 9 --part forwarding --datapath offload --datapath redirect`: \
             without outer checksums, and super-frames that programs forward",
        ),
        ("roce", "`benches/run roce`: RoCE endpoints of `lab`"),
        ("micro", "`benches/run micro --quick`: one frame, in memory"),
        ("scale", "`benches/run scale`: as tables grow"),
        ("planner", "`benches/run planner`: an evaluation of a plan, and a search"),
        ("web", "`benches/run web`: the live page"),
        ("sim", "`benches/run sim`: the simulator. The peer is htsim, by figures recorded once"),
        ("htsim", "`benches/run sim --htsim PATH`: `lab sim` and htsim as programs, in turns"),
    ] {
        let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let machine = report["machine"].as_str().unwrap();
        let commit = report["commit"].as_str().unwrap_or("before commits were recorded");
        write!(page, "\n## {what}\n\nMachine: {machine}. Commit: {commit}.\n\n").unwrap();
        let peer = if name.ends_with("sim") { "htsim" } else { "kernel VXLAN" };
        writeln!(page, "| measurement | case | unit | vtepd | {peer} | ratio |").unwrap();
        page.push_str("|---|---|---|---|---|---|\n");
        for row in report["rows"].as_array().unwrap() {
            writeln!(
                page,
                "| {} | {} | {} | {} | {} | {} |",
                row["bench"].as_str().unwrap(),
                row["case"].as_str().unwrap(),
                row["unit"].as_str().unwrap(),
                figure(&row["vtepd"]),
                figure(&row["kernel"]),
                figure(&row["ratio"]),
            )
            .unwrap();
        }
    }
    compare("benches/RESULTS.md", &page);
}

const STYLE: &str = "<style>
  .bg{fill:#ffffff} text{font-family:system-ui,sans-serif;font-size:14px;fill:#1f2328}
  .small{font-size:12px;fill:#59636e} .bold{font-weight:600}
  .share{paint-order:stroke;stroke:#ffffff;stroke-width:4px}
  .bar{fill:#0969da} .axis{stroke:#848d97} .mean{stroke:#59636e;stroke-dasharray:4 4}
  @media (prefers-color-scheme: dark){ .bg{fill:#0d1117} text{fill:#e6edf3}
  .small{fill:#9198a1} .share{stroke:#0d1117} .bar{fill:#4493f8} .axis{stroke:#656c76} .mean{stroke:#9198a1} }
</style>";

/// The load of the links between the data centres, by policy.
#[test]
fn the_picture_of_the_demo_is_up_to_date() {
    const LINKS: [&str; 4] = ["spine1:dci1", "spine1:dci2", "spine2:dci1", "spine2:dci2"];
    let file = "../deploy/containerlab/scaleacross/figures.json";
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let figures: serde_json::Value = serde_json::from_str(&text).unwrap();
    let title = "Load of the four links between the data centres, by policy";
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1075 260\" role=\"img\" \
         aria-label=\"{title}\">\n<title>{title}</title>\n{STYLE}\n\
         <rect class=\"bg\" width=\"1075\" height=\"260\"/>\n\
         <text class=\"bold\" x=\"20\" y=\"24\">{title}</text>\n"
    );
    for (policy, left) in
        figures["policies"].as_array().unwrap().iter().zip([20, 235, 450, 665, 880])
    {
        let loads = LINKS.map(|link| policy["links"][link].as_f64().unwrap());
        let all: f64 = loads.iter().sum();
        writeln!(svg, "<path class=\"mean\" d=\"M{left} 165h168\"/>").unwrap();
        for (load, x) in loads.iter().zip([left, left + 44, left + 88, left + 132]) {
            let (share, middle) = (100.0 * load / all, x + 18);
            let (height, top) = (1.4 * share, 200.0 - 1.4 * share);
            writeln!(
                svg,
                "<rect class=\"bar\" x=\"{x}\" y=\"{top:.1}\" width=\"36\" height=\"{height:.1}\"/>\
                 <text class=\"small share\" x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">{share:.0} %</text>",
                top - 5.0
            )
            .unwrap();
        }
        let name = match policy["name"].as_str().unwrap() {
            "kernel" => "kernel VXLAN".to_owned(),
            name => format!("vtepd {name}"),
        };
        let mmr = policy["mmr"].as_f64().unwrap();
        writeln!(
            svg,
            "<path class=\"axis\" d=\"M{left} 200h168\"/>\
             <text class=\"bold\" x=\"{left}\" y=\"222\">{name}</text>\
             <text class=\"small\" x=\"{left}\" y=\"242\">fullest over mean: {mmr:.2}</text>"
        )
        .unwrap();
    }
    svg.push_str("</svg>\n");
    compare("docs/images/demo.svg", &svg);
}
