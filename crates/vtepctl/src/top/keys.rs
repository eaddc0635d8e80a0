//! What each key does.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{Change, Mode, POLICIES, Screen};

/// What is left to do after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Ends the command.
    Quit,
    /// Asks vtepd for a change.
    Change(Change),
}

/// Applies a key to the screen.
pub(super) fn press(screen: &mut Screen, key: KeyEvent) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(Action::Quit);
    }
    screen.message = None;
    match screen.mode {
        Mode::Normal => normal(screen, key.code),
        Mode::Help => {
            screen.mode = Mode::Normal;
            None
        }
        Mode::Policy { vni, selected } => policy(screen, key.code, vni, selected),
        Mode::Detach { vni, .. } => {
            screen.mode = Mode::Normal;
            matches!(key.code, KeyCode::Char('y' | 'Y'))
                .then_some(Action::Change(Change::Detach { vni }))
        }
    }
}

fn normal(screen: &mut Screen, code: KeyCode) -> Option<Action> {
    let index = screen.selected_index().unwrap_or(0);
    match code {
        KeyCode::Char('q') | KeyCode::Esc => return Some(Action::Quit),
        KeyCode::Up | KeyCode::Char('k') => screen.select(index.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => screen.select(index + 1),
        KeyCode::Char('?' | 'h') => screen.mode = Mode::Help,
        KeyCode::Char(key @ ('p' | 'd' | 'a')) => return of_vni(screen, key),
        _ => {}
    }
    None
}

/// The keys for the selected VNI.
fn of_vni(screen: &mut Screen, key: char) -> Option<Action> {
    let Some(row) = screen.selected() else {
        screen.refuse("there is no VNI to select");
        return None;
    };
    if row.external {
        let text = format!("{} serves many VNIs: use `vtepctl policy set VNI POLICY`", row.netdev);
        screen.refuse(text);
        return None;
    }
    let (vni, standalone) = (row.vni, row.standalone);
    let named = row.policy.as_deref();
    let selected = POLICIES.iter().position(|policy| Some(*policy) == named).unwrap_or(0);
    match key {
        'p' => screen.mode = Mode::Policy { vni, selected },
        'd' => screen.mode = Mode::Detach { vni, standalone },
        _ => return Some(Action::Change(Change::Attach { vni })),
    }
    None
}

/// The keys while a policy is chosen.
fn policy(screen: &mut Screen, code: KeyCode, vni: u32, selected: usize) -> Option<Action> {
    let chosen = match code {
        KeyCode::Up | KeyCode::Char('k') => {
            screen.mode = Mode::Policy { vni, selected: selected.saturating_sub(1) };
            return None;
        }
        KeyCode::Down | KeyCode::Char('j') => {
            screen.mode = Mode::Policy { vni, selected: (selected + 1).min(POLICIES.len() - 1) };
            return None;
        }
        KeyCode::Enter => Some(selected),
        KeyCode::Char(digit @ '1'..='9') => match (digit as usize) - ('1' as usize) {
            index if index < POLICIES.len() => Some(index),
            _ => return None,
        },
        KeyCode::Esc | KeyCode::Char('q' | 'n') => None,
        _ => return None,
    };
    screen.mode = Mode::Normal;
    let policy = *POLICIES.get(chosen?)?;
    Some(Action::Change(Change::Policy { vni, policy }))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::fixtures::{sample, vni};
    use super::super::model::Update;
    use super::*;

    fn screen() -> Screen {
        let mut sample = sample(Instant::now(), 0);
        sample.status.taken = vec![vni(10, "qp-hash"), vni(20, "qp-pin")];
        let mut screen = Screen::default();
        screen.apply(Update::Sample(Box::new(sample)));
        screen
    }

    fn keys(screen: &mut Screen, codes: &[KeyCode]) -> Option<Action> {
        codes.iter().fold(None, |_, code| press(screen, KeyEvent::from(*code)))
    }

    fn typed(screen: &mut Screen, text: &str) -> Option<Action> {
        keys(screen, &text.chars().map(KeyCode::Char).collect::<Vec<_>>())
    }

    #[test]
    fn three_keys_end_the_command_and_escape_leaves_a_dialog_first() {
        let mut screen = screen();
        assert_eq!(typed(&mut screen, "q"), Some(Action::Quit));
        assert_eq!(keys(&mut screen, &[KeyCode::Esc]), Some(Action::Quit));
        let control = |key| KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL);
        for dialog in ["", "?", "p", "d"] {
            typed(&mut screen, dialog);
            assert_eq!(press(&mut screen, control('c')), Some(Action::Quit), "{dialog}");
            assert_eq!(press(&mut screen, control('d')), None, "not the key d");
            if !dialog.is_empty() {
                assert_ne!(screen.mode, Mode::Normal);
                assert_eq!(keys(&mut screen, &[KeyCode::Esc]), None, "{dialog}");
            }
            assert_eq!(screen.mode, Mode::Normal);
        }
    }

    #[test]
    fn arrows_select_a_vni_and_stop_at_the_ends() {
        let mut screen = screen();
        let mut after = |code| {
            keys(&mut screen, &[code]);
            screen.selected().unwrap().vni
        };
        assert_eq!([KeyCode::Up, KeyCode::Down, KeyCode::Down].map(&mut after), [10, 20, 20]);
        assert_eq!(after(KeyCode::Up), 10);
    }

    #[test]
    fn a_policy_is_chosen_by_its_number_or_by_arrows() {
        let set = |vni, policy| Some(Action::Change(Change::Policy { vni, policy }));
        let mut screen = screen();
        assert_eq!(typed(&mut screen, "p1"), set(10, "five-tuple"));
        assert_eq!(screen.mode, Mode::Normal);
        // It begins with the VNI's own policy.
        assert_eq!(typed(&mut screen, "p"), None);
        assert_eq!(screen.mode, Mode::Policy { vni: 10, selected: 1 });
        let down = [KeyCode::Down; 7];
        keys(&mut screen, &down);
        assert_eq!(keys(&mut screen, &[KeyCode::Enter]), set(10, "qp-pin"));
        // Other numbers and keys do nothing.
        assert_eq!(typed(&mut screen, "p59xd"), None);
        assert_eq!(screen.mode, Mode::Policy { vni: 10, selected: 1 });
        assert_eq!(typed(&mut screen, "4"), set(10, "qp-pin"));
    }

    #[test]
    fn detaching_needs_a_yes() {
        let mut screen = screen();
        keys(&mut screen, &[KeyCode::Down]);
        assert_eq!(typed(&mut screen, "d"), None);
        assert_eq!(screen.mode, Mode::Detach { vni: 20, standalone: false });
        assert_eq!(typed(&mut screen, "y"), Some(Action::Change(Change::Detach { vni: 20 })));
        for no in ["dn", "dd", "dq"] {
            assert_eq!(typed(&mut screen, no), None);
            assert_eq!(screen.mode, Mode::Normal);
        }
        assert_eq!(typed(&mut screen, "a"), Some(Action::Change(Change::Attach { vni: 20 })));
    }

    #[test]
    fn where_no_vni_can_be_changed_the_screen_says_why() {
        let mut empty = Screen::default();
        assert_eq!(typed(&mut empty, "d"), None);
        assert_eq!((empty.mode, empty.message.take().unwrap().is_error), (Mode::Normal, true));
        let mut sample = sample(Instant::now(), 0);
        let many = api::v1::Vni { external: true, vni: 0, ..vni(0, "qp-hash") };
        sample.status.taken = vec![many];
        empty.apply(Update::Sample(Box::new(sample)));
        assert_eq!(typed(&mut empty, "p"), None);
        assert!(empty.message.unwrap().text.contains("serves many VNIs"));
    }

    #[test]
    fn the_next_key_removes_a_message() {
        let mut screen = screen();
        screen.apply(Update::Refused("permission denied".to_owned()));
        assert!(screen.message.as_ref().is_some_and(|message| message.is_error));
        typed(&mut screen, "x");
        assert_eq!(screen.message, None);
    }
}
