//! The screen as text: what fits into the terminal, from the most important on.
//!
//! - [`tables`]: next hops and paths, VNIs, queue pairs
//! - [`dialogs`]: keys, policies, whether to detach
//! - [`text`]: figures and sentences

mod dialogs;
mod tables;
mod text;

use api::v1;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Widget};

use super::model::Screen;
use super::sample::{Figures, Rate};
use crate::status::duration;
use text::{lines, phrases, with_unit, wrapped};

/// Lines that a section needs: its title, headings and one row.
const SECTION: u16 = 3;
const HINT: &str = "q end  ↑↓ VNI  p policy  d detach  a attach  ? help";

/// Whether two sections fit beside each other.
const fn wide(width: u16) -> bool {
    width >= 70
}

/// Draws the screen.
pub(super) fn draw(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let footer = footer(screen, area);
    let [rest, below] = split(area, area.height.saturating_sub(size(&footer)));
    screen_above(screen, rest, buffer);
    Paragraph::new(footer).render(below, buffer);
    dialogs::draw(screen.mode, area, buffer);
}

/// The screen without keys, as lines of text.
#[must_use]
pub(super) fn as_text(screen: &Screen, width: u16, height: u16) -> String {
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    screen_above(screen, buffer.area, &mut buffer);
    let rows = buffer.content.chunks(width.into());
    let line = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned() + "\n"
    };
    rows.map(line).collect()
}

/// All but the footer.
fn screen_above(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let header = header(screen, area.width);
    let [top, rest] = split(area, size(&header).min(area.height / 3).max(1));
    Paragraph::new(header).render(top, buffer);
    let Some(figures) = &screen.figures else { return };
    sections(screen, figures, rest, buffer);
    if screen.disconnected.is_some() {
        buffer.set_style(rest, Style::new().add_modifier(Modifier::DIM));
    }
}

/// The first lines of an area, and the others.
fn split(area: Rect, height: u16) -> [Rect; 2] {
    let height = height.min(area.height);
    let first = Rect { height, ..area };
    [first, Rect { y: area.y + height, height: area.height - height, ..area }]
}

fn size(lines: &[Line]) -> u16 {
    u16::try_from(lines.len()).unwrap_or(u16::MAX)
}

/// Draws the title of a section. Returns the area below it.
fn section(title: &str, area: Rect, buffer: &mut Buffer) -> Rect {
    let title = Line::from(format!(" {title} ")).style(Modifier::BOLD);
    let block = Block::new().borders(Borders::TOP).title(title);
    let inner = block.inner(area);
    block.render(area, buffer);
    inner
}

/// A rate as one phrase, or as two where one would not fit.
fn rates(name: &str, rate: Option<Rate>, is_wide: bool) -> Vec<String> {
    let Some(Rate { frames_per_second, bits_per_second }) = rate else {
        return vec![format!("{name} -")];
    };
    let frames = format!("{name} {}", with_unit(frames_per_second, "frames/s"));
    let bits = with_unit(bits_per_second, "bit/s");
    if is_wide { vec![format!("{frames}, {bits}")] } else { vec![frames, bits] }
}

/// What vtepd is, and its rates; or why there is no connection.
fn header(screen: &Screen, area_width: u16) -> Vec<Line<'static>> {
    let width = area_width.into();
    let lost = screen.disconnected.as_ref().map(|reason| {
        let text = format!("No connection, tried again every second: {reason}");
        wrapped(&text, width).into_iter().map(|line| Line::from(line).style(Color::Red))
    });
    let Some(figures) = &screen.figures else {
        let waiting = || vec![Line::from("vtepd is asked")];
        return lost.map_or_else(waiting, Iterator::collect);
    };
    let mut all = lines(phrases(&identity(figures), width));
    match lost {
        Some(lost) => all.extend(lost),
        None => {
            let dropped = figures.dropped_per_second;
            let dropped = dropped.map_or("-".to_owned(), |rate| with_unit(rate, "frames/s"));
            let mut parts = vec![format!("dropped {dropped}")];
            let is_wide = wide(area_width);
            parts.extend(rates("encapsulated", figures.encapsulated, is_wide));
            parts.extend(rates("decapsulated", figures.decapsulated, is_wide));
            let by_kernel = figures.kernel_packets_per_second.filter(|rate| *rate > 0.0);
            parts.extend(
                by_kernel.map(|rate| format!("kernel VXLAN {}", with_unit(rate, "packets/s"))),
            );
            all.extend(lines(phrases(&parts, width)));
        }
    }
    all
}

/// The leaf, its datapaths and its process.
fn identity(figures: &Figures) -> Vec<String> {
    let datapaths = match figures.datapaths.iter().collect::<Vec<_>>().as_slice() {
        [(only, _)] => format!("datapath {only}"),
        some => some
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect::<Vec<_>>()
            .join(", "),
    };
    let leaf = figures.leaf.join(" ");
    let warnings = match figures.warnings.len() {
        0 => None,
        1 => Some("1 warning (vtepctl status)".to_owned()),
        many => Some(format!("{many} warnings (vtepctl status)")),
    };
    let parts = [
        Some(if leaf.is_empty() {
            "no VNI is taken over".to_owned()
        } else {
            format!("VTEP {leaf}")
        }),
        (!figures.datapaths.is_empty()).then_some(datapaths),
        Some(format!("vtepd {} up {}", figures.version, duration(figures.uptime_seconds))),
        (!figures.ready).then(|| "not ready".to_owned()),
        warnings,
    ];
    parts.into_iter().flatten().collect()
}

/// The sections, as far as there is room.
fn sections(screen: &Screen, figures: &Figures, area: Rect, buffer: &mut Buffer) {
    let is_wide = wide(area.width);
    let loads = size_of_loads(figures);
    let vnis = u16::try_from(screen.vnis().len().max(1)).unwrap_or(u16::MAX).saturating_add(2);
    // From the most important on: those without room for a row are left out.
    let wanted = match is_wide {
        true => vec![loads.max(vnis), wanted_queue_pairs(figures), area.height],
        false => vec![loads, vnis, wanted_queue_pairs(figures), area.height],
    };
    let heights = share(&wanted, area.height);
    let areas = Layout::vertical(heights.into_iter().map(Constraint::Length)).split(area);
    let mut areas = areas.iter().copied();
    let mut next = || areas.next().unwrap_or_default();
    if is_wide {
        let right = tables::width_of_vnis(screen, area.width);
        let columns = [Constraint::Fill(1), Constraint::Length(1), Constraint::Length(right)];
        let [left, _, right] = Layout::horizontal(columns).areas(next());
        tables::loads(figures, left, buffer);
        tables::vnis(screen, right, buffer);
    } else {
        tables::loads(figures, next(), buffer);
        tables::vnis(screen, next(), buffer);
    }
    tables::queue_pairs(figures, next(), buffer);
    events(screen, next(), buffer);
}

fn size_of_loads(figures: &Figures) -> u16 {
    let paths = figures.paths.as_ref().map_or(0, Vec::len);
    let below = if paths == 0 { 0 } else { paths + 2 };
    u16::try_from(figures.next_hops.len().max(1) + 2 + below).unwrap_or(u16::MAX)
}

fn wanted_queue_pairs(figures: &Figures) -> u16 {
    let rows = figures.queue_pairs.as_ref().map_or(0, Vec::len);
    u16::try_from(rows.max(1) + 2).unwrap_or(u16::MAX)
}

/// Divides lines between sections. Each gets [`SECTION`] lines while there are enough. Then the
/// first grows to half of the lines, and the others get the rest, line by line.
fn share(wanted: &[u16], lines: u16) -> Vec<u16> {
    let mut left = lines;
    let mut heights: Vec<u16> = Vec::new();
    for wanted in wanted {
        let least = if left >= SECTION { SECTION.min(*wanted) } else { 0 };
        left -= least;
        heights.push(least);
    }
    let first = heights.first_mut().filter(|height| **height > 0);
    if let (Some(height), Some(wanted)) = (first, wanted.first()) {
        let more = (lines / 2).min(*wanted).saturating_sub(*height).min(left);
        *height += more;
        left -= more;
    }
    loop {
        let before = left;
        for (height, wanted) in heights.iter_mut().zip(wanted).skip(1) {
            if *height > 0 && *height < *wanted && left > 0 {
                *height += 1;
                left -= 1;
            }
        }
        if left == before {
            return heights;
        }
    }
}

/// The last events, the newest in the last line.
fn events(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let area = section("Events", area, buffer);
    let line = |event: &v1::Event| {
        // RFC 3339: the time follows the date and `T`.
        let time = event.time.get(11..19).unwrap_or("        ");
        Line::from(format!("{time}  {:<14}  {}", event.kind, event.text))
    };
    let skipped = screen.events.len().saturating_sub(area.height.into());
    let rows: Vec<Line> = screen.events.iter().skip(skipped).map(line).collect();
    Paragraph::new(rows).render(area, buffer);
}

/// The answer to the last change, or the keys.
fn footer(screen: &Screen, area: Rect) -> Vec<Line<'static>> {
    let width = area.width.into();
    let Some(message) = &screen.message else {
        return vec![Line::from(HINT).style(Modifier::DIM)];
    };
    let colour = if message.is_error { Color::Red } else { Color::Green };
    let most = usize::from(area.height / 3).max(1);
    let rows = wrapped(&message.text, width).into_iter().take(most);
    rows.map(|row| Line::from(row).style(colour)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::fixtures::{detached, queue_pair, sample, vni};
    use super::super::model::{Mode, Update};
    use super::*;

    /// A second of traffic: 1000 frames by `up1` and 3000 by `up2`, of 1000 bytes each.
    fn busy() -> Screen {
        let (start, mut screen) = (Instant::now(), Screen::default());
        for (seconds, frames) in [(0, 500), (1, 1500)] {
            let mut sample = sample(start + Duration::from_secs(seconds), frames);
            sample.status.taken.push(vni(20, "qp-hash"));
            sample.status.left.push(detached(30));
            let path = |uplink: &str, router: &str, kilobytes_per_second| v1::Path {
                uplink: uplink.to_owned(),
                routers: vec![router.to_owned()],
                queue_pairs: 16,
                kilobytes_per_second,
                ..v1::Path::default()
            };
            sample.paths = Some(vec![v1::VtepPaths {
                vtep: "10.0.0.2".to_owned(),
                paths: vec![path("up1", "10.2.1.1", 950), path("up2", "10.2.2.1", 2850)],
                ..v1::VtepPaths::default()
            }]);
            let queue_pairs = (1..=32).map(|number| queue_pair(number, "up1", number.into()));
            sample.queue_pairs = Some(queue_pairs.collect());
            screen.apply(Update::Sample(Box::new(sample)));
        }
        for sequence in 1..=40 {
            screen.apply(Update::Event(Box::new(v1::Event {
                sequence,
                time: "2026-11-24T10:20:30.5Z".to_owned(),
                kind: "mac-added".to_owned(),
                text: format!("event number {sequence}"),
                ..v1::Event::default()
            })));
        }
        screen
    }

    fn shown(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(screen, frame.area(), frame.buffer_mut())).unwrap();
        terminal.backend().to_string()
    }

    /// Whether `text` has a line with all of these.
    fn has_line(text: &str, words: &[&str]) -> bool {
        text.lines().any(|line| words.iter().all(|word| line.contains(word)))
    }

    #[test]
    fn a_terminal_of_80_columns_shows_all_sections() {
        let text = shown(&busy(), 80, 24);
        for words in [
            &["VTEP 10.0.0.1", "kernel 1, userspace 2", "up 3 min 12 s"][..],
            &["dropped 10 frames/s", "encapsulated 4.00 k frames/s", "30.4 Mbit/s"],
            &["up1 10.1.1.0", "8.00 M", "1.00 k"],
            &["up2 10.1.2.0", "██", "24.0 M", "3.00 k"],
            &["10.0.0.2 up1 10", "7.60 M", "16"],
            &["10", "vx10", "userspace", "qp-pin"],
            &["30", "vx30", "kernel", "-"],
            &["Queue pairs: 32"],
            &["10", "192.168.10.1", "192.168.10.3", "0x20", "256 k", "pinned", "up1 10.2.1.1"],
            &["10:20:30", "mac-added", "event number 40"],
            &["q end", "? help"],
        ] {
            assert!(has_line(&text, words), "{words:?} in\n{text}");
        }
        let wide = shown(&busy(), 100, 24);
        let counts = ["0x20", "256 k", "411", "422", "433", "pinned", "up1 10.2.1.1"];
        assert!(has_line(&wide, &counts) && has_line(&wide, &["gaps", "naks", "marks"]), "{wide}");
        assert!(!text.contains("marks"), "{text}");
        // The busiest queue pairs, and the last events.
        assert!(!text.contains("0x1 ") && !text.contains("event number 1 "), "{text}");
    }

    #[test]
    fn a_small_terminal_shows_what_matters_most() {
        let text = shown(&busy(), 40, 12);
        for words in [
            &["VTEP 10.0.0.1"][..],
            &["dropped 10 frames/s"],
            &["up1 10.1.1.0", "8.00 M"],
            &["10", "vx10", "userspace", "qp-pin"],
        ] {
            assert!(has_line(&text, words), "{words:?} in\n{text}");
        }
    }

    #[test]
    fn no_size_and_no_state_panics() {
        let mut screens = [Screen::default(), busy(), Screen::default()];
        screens[2].apply(Update::Sample(Box::new(sample(Instant::now(), 1))));
        let modes = [
            Mode::Normal,
            Mode::Help,
            Mode::Policy { vni: 10, selected: 3 },
            Mode::Detach { vni: 10, standalone: true },
        ];
        for screen in &mut screens {
            for mode in modes {
                screen.mode = mode;
                for (width, height) in (1..=20).map(|n| (n * 6, n)).chain([(1, 40), (300, 1)]) {
                    shown(screen, width, height);
                    let _ = as_text(screen, width, height);
                }
            }
            screen.apply(Update::Disconnected("no process listens".to_owned()));
            screen.apply(Update::Refused("a change needs CAP_NET_ADMIN".to_owned()));
        }
    }

    #[test]
    fn what_went_wrong_is_shown_and_figures_are_no_longer_called_current() {
        let mut screen = busy();
        screen.apply(Update::Refused("a change needs CAP_NET_ADMIN".to_owned()));
        assert!(has_line(&shown(&screen, 80, 24), &["a change needs CAP_NET_ADMIN"]));
        screen.apply(Update::Disconnected("vtepd has ended".to_owned()));
        let text = shown(&screen, 80, 24);
        assert!(has_line(&text, &["No connection", "every second", "vtepd has ended"]), "{text}");
        assert!(!text.contains("dropped"), "{text}");
        let mut never = Screen::default();
        assert!(shown(&never, 80, 24).contains("vtepd is asked"));
        never.apply(Update::Disconnected("no process listens".to_owned()));
        assert!(shown(&never, 80, 24).contains("no process listens"));
    }

    #[test]
    fn the_selected_vni_is_in_sight() {
        let mut now = sample(Instant::now(), 0);
        now.status.taken = (1..=50).map(|number| vni(number, "qp-hash")).collect();
        let mut screen = Screen::default();
        screen.apply(Update::Sample(Box::new(now)));
        assert!(!shown(&screen, 80, 24).contains("vx50"));
        screen.select(49);
        assert!(shown(&screen, 80, 24).contains("vx50"));
    }

    #[test]
    fn dialogs_name_their_vni_and_their_keys() {
        let mut screen = busy();
        let mut of = |mode| {
            screen.mode = mode;
            shown(&screen, 80, 24)
        };
        let policies = of(Mode::Policy { vni: 20, selected: 1 });
        assert!(policies.contains("Policy of VNI 20") && policies.contains("4  qp-pin"));
        let detach = of(Mode::Detach { vni: 20, standalone: false });
        assert!(detach.contains("Detach VNI 20?") && detach.contains("y  detach"));
        assert!(detach.contains("the kernel forwards"));
        assert!(of(Mode::Detach { vni: 20, standalone: true }).contains("nobody forwards"));
        assert!(of(Mode::Help).contains("set its policy"));
    }

    #[test]
    fn text_has_no_keys_and_no_trailing_blanks() {
        let text = as_text(&busy(), 80, 24);
        assert_eq!(text.lines().count(), 24);
        assert!(!text.contains("q end") && text.lines().all(|line| line.trim_end() == line));
        assert!(has_line(&text, &["dropped 10 frames/s"]));
    }

    #[test]
    fn lines_are_divided_by_what_sections_want() {
        assert_eq!(share(&[5, 10, 20], 30), [5, 10, 15]);
        assert_eq!(share(&[9, 20, 20], 24), [9, 8, 7]);
        assert_eq!(share(&[50, 20, 20], 20), [10, 5, 5]);
        assert_eq!(share(&[9, 9, 20], 10), [4, 3, 3]);
        assert_eq!(share(&[9, 9, 20], 7), [3, 4, 0]);
        assert_eq!(share(&[3, 3, 2], 30), [3, 3, 2]);
        assert_eq!(share(&[9, 9, 20], 2), [0, 0, 0]);
    }
}
