//! Output for people.

use std::fmt::Write;

use doctor::{Finding, Fix, Report, Setting, Severity, UndoOutcome};

use super::Applied;

/// Lines are wrapped at this column.
const WIDTH: usize = 92;
/// The indentation of a finding's text.
const INDENT: usize = 8;

pub(super) fn describe(report: &Report, applied: &[Applied]) -> String {
    let mut text = String::new();
    for (setting, result) in applied {
        // Writing to a string does not fail.
        let _ = match result {
            Ok(()) => writeln!(text, "applied: {}", setting.command()),
            Err(error) => writeln!(text, "refused: {}: {error}", setting.command()),
        };
    }
    for finding in &report.findings {
        describe_finding(&mut text, finding);
    }
    for unknown in &report.unknown {
        let _ = writeln!(text, "not checked: {unknown}");
    }
    let found = report.findings.iter().filter(|finding| finding.severity != Severity::Note).count();
    let _ = match found {
        0 => writeln!(text, "No problems found."),
        1 => writeln!(text, "1 finding."),
        found => writeln!(text, "{found} findings."),
    };
    let settings = report.settings().count();
    if settings > 0 {
        let _ = writeln!(
            text,
            "`linerate doctor --apply` changes {settings} settings as shown above until the next \
             boot; --undo reverts them."
        );
    }
    text
}

fn describe_finding(text: &mut String, finding: &Finding) {
    let Finding { on, severity, what, why, cost, fix, .. } = finding;
    paragraph(text, &format!("{:INDENT$}", severity.name()), &format!("{on}: {what}"));
    let indent = " ".repeat(INDENT);
    paragraph(text, &indent, &format!("why: {why}"));
    if *severity != Severity::Note {
        paragraph(text, &indent, &format!("cost: {cost}"));
    }
    match fix {
        // Not wrapped, so that it can be copied.
        Fix::Change(settings) => settings.iter().for_each(|setting| {
            let _ = writeln!(text, "{indent}fix: {}", setting.command());
        }),
        Fix::Manual(words) => paragraph(text, &indent, &format!("fix: {words}")),
        Fix::None => {}
    }
}

/// Writes words wrapped into lines, after `first`.
fn paragraph(text: &mut String, first: &str, words: &str) {
    let mut line = first.to_owned();
    for (index, word) in words.split(' ').enumerate() {
        if index > 0 && line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = " ".repeat(INDENT + 2);
        } else if index > 0 {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}

pub(super) fn describe_undone(undone: &[(Setting, UndoOutcome)]) -> String {
    if undone.is_empty() {
        return "Nothing to undo.\n".into();
    }
    let line = |(setting, undone): &(Setting, UndoOutcome)| {
        let command = setting.command();
        match undone {
            UndoOutcome::Restored => format!("reverted: {command}\n"),
            UndoOutcome::Changed(now) => {
                format!("not reverted, because the value is {now} now: {command}\n")
            }
            UndoOutcome::Gone => format!("gone: {}\n", setting.target),
            UndoOutcome::Failed(error) => format!("refused: {command}: {error}\n"),
        }
    };
    undone.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(fix: Fix) -> Finding {
        Finding {
            check: "mtu",
            on: "wg0".into(),
            severity: Severity::Slow,
            what: "the MTU is 1420, and only 1340 bytes fit".into(),
            why: "a longer packet leaves in fragments, ".repeat(4).trim_end().to_owned(),
            cost: "RFC 8900",
            fix,
        }
    }

    #[test]
    fn a_finding_is_wrapped_and_its_commands_can_be_copied() {
        let fix = Fix::Change(vec![Setting::mtu("wg0", 1340)]);
        let report = Report { findings: vec![finding(fix)], unknown: vec!["x: EPERM".into()] };
        let applied = [(Setting::mtu("wg0", 1340), Ok(()))];
        let text = describe(&report, &applied);
        assert!(text.starts_with("applied: ip link set wg0 mtu 1340\nslow    wg0: the MTU is"));
        for line in [
            "        cost: RFC 8900\n",
            "        fix: ip link set wg0 mtu 1340\n",
            "not checked: x: EPERM\n1 finding.\n",
        ] {
            assert!(text.contains(line), "{line:?} in {text}");
        }
        let long = text.lines().find(|line| line.len() > WIDTH && !line.starts_with('`'));
        assert_eq!(long, None);
        assert!(text.contains("\n          "), "{text}");
    }

    #[test]
    fn a_note_does_not_count_as_a_finding() {
        let note = Finding { severity: Severity::Note, ..finding(Fix::None) };
        let text = describe(&Report { findings: vec![note], unknown: vec![] }, &[]);
        assert!(text.starts_with("note    ") && text.ends_with("No problems found.\n"));
    }

    #[test]
    fn the_outcome_of_each_setting_is_reported() {
        let setting = || Setting::mtu("wg0", 1420);
        let undone = [
            (setting(), UndoOutcome::Restored),
            (setting(), UndoOutcome::Changed("1300".into())),
            (setting(), UndoOutcome::Gone),
            (setting(), UndoOutcome::Failed(std::io::ErrorKind::PermissionDenied.into())),
        ];
        assert_eq!(
            describe_undone(&undone),
            "reverted: ip link set wg0 mtu 1420\n\
             not reverted, because the value is 1300 now: ip link set wg0 mtu 1420\ngone: mtu wg0\n\
             refused: ip link set wg0 mtu 1420: permission denied\n"
        );
        assert_eq!(describe_undone(&[]), "Nothing to undo.\n");
    }
}
