//! Dialogs over the screen: the keys, the choice of a policy, whether to detach.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Widget};

use super::text::{lines, wrapped};
use crate::top::model::{Mode, POLICIES};

/// The keys and what they do.
const KEYS: [(&str, &str); 6] = [
    ("up, down", "select a VNI"),
    ("p", "set its policy"),
    ("d", "detach it: the kernel forwards"),
    ("a", "attach it: vtepd forwards"),
    ("?", "these keys"),
    ("q, Esc", "end; also Ctrl-C"),
];

/// Width of a dialog with its frame, in columns.
const WIDTH: u16 = 44;

/// Draws the dialog of a mode, if it has one.
pub(super) fn draw(mode: Mode, area: Rect, buffer: &mut Buffer) {
    let width = usize::from(WIDTH.min(area.width).saturating_sub(4));
    let (title, lines) = match mode {
        Mode::Normal => return,
        Mode::Help => ("Keys".to_owned(), keys()),
        Mode::Policy { vni, selected } => (format!("Policy of VNI {vni}"), policies(selected)),
        Mode::Detach { vni, standalone } => {
            let then = match standalone {
                true => "nobody forwards its frames",
                false => "the kernel forwards its frames",
            };
            let text = format!("Then {then} until it is attached again (key a).");
            let mut lines = lines(wrapped(&text, width));
            lines.push(Line::from("y  detach        n  leave it"));
            (format!("Detach VNI {vni}?"), lines)
        }
    };
    frame(&title, lines, area, buffer);
}

fn keys() -> Vec<Line<'static>> {
    KEYS.iter().map(|(key, what)| Line::from(format!("{key:<9}{what}"))).collect()
}

fn policies(selected: usize) -> Vec<Line<'static>> {
    let line = |(index, policy): (usize, &&str)| {
        let text = Span::from(format!("{}  {policy:<12}", index + 1));
        let style = match index == selected {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        Line::from(text.style(style))
    };
    let rows = POLICIES.iter().enumerate().map(line);
    rows.chain([Line::from("number or Enter: set    Esc: leave it")]).collect()
}

/// Lines in a frame in the middle of the area.
fn frame(title: &str, lines: Vec<Line<'static>>, area: Rect, buffer: &mut Buffer) {
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let width = WIDTH.min(area.width);
    let middle = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    Clear.render(middle, buffer);
    let block = Block::bordered().title(format!(" {title} "));
    let inner = block.inner(middle);
    block.render(middle, buffer);
    let inner = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    Paragraph::new(lines).render(inner, buffer);
}
