//! Output for programs. The schema is `docs/json.md`, which changes with this file.

use doctor::{Finding, Fix, Report, Setting, UndoOutcome};
use serde_json::{Value, json};

use super::Applied;

/// Incremented when a key is removed or changes its meaning, but not for new keys.
const SCHEMA: u32 = 1;

pub(super) fn describe(report: &Report, applied: &[Applied]) -> Value {
    let applied = applied.iter().map(|(setting, result)| {
        let error = result.as_ref().err().map(ToString::to_string);
        json!({ "command": setting.command(), "error": error })
    });
    json!({
        "schema": SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "unknown": report.unknown,
        "applied": applied.collect::<Vec<_>>(),
    })
}

fn finding(finding: &Finding) -> Value {
    let (commands, advice) = match &finding.fix {
        Fix::Change(settings) => (settings.iter().map(Setting::command).collect(), None),
        Fix::Manual(words) => (Vec::new(), Some(words)),
        Fix::None => (Vec::new(), None),
    };
    json!({
        "check": finding.check,
        "on": finding.on,
        "weight": finding.severity.name(),
        "what": finding.what,
        "why": finding.why,
        "cost": finding.cost,
        "commands": commands,
        "advice": advice,
    })
}

pub(super) fn describe_undone(undone: &[(Setting, UndoOutcome)]) -> Value {
    let one = |(setting, undone): &(Setting, UndoOutcome)| {
        let (outcome, detail) = match undone {
            UndoOutcome::Restored => ("restored", None),
            UndoOutcome::Changed(now) => ("changed", Some(now.clone())),
            UndoOutcome::Gone => ("gone", None),
            UndoOutcome::Failed(error) => ("failed", Some(error.to_string())),
        };
        json!({ "command": setting.command(), "outcome": outcome, "detail": detail })
    };
    json!({
        "schema": SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "undone": undone.iter().map(one).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use doctor::Severity;

    use super::*;

    #[test]
    fn a_report_is_complete() {
        let finding = |fix| Finding {
            check: "mtu",
            on: "wg0".into(),
            severity: Severity::Slow,
            what: "w".into(),
            why: "y".into(),
            cost: "c",
            fix,
        };
        let findings = vec![
            finding(Fix::Change(vec![Setting::mtu("wg0", 1340)])),
            finding(Fix::Manual("do".into())),
        ];
        let report = Report { findings, unknown: vec!["u".into()] };
        let applied =
            [(Setting::mtu("wg0", 1340), Err(std::io::ErrorKind::PermissionDenied.into()))];
        let finding_json = |commands: Value, advice: Value| {
            json!({
                "check": "mtu", "on": "wg0", "weight": "slow", "what": "w", "why": "y",
                "cost": "c", "commands": commands, "advice": advice,
            })
        };
        assert_eq!(
            describe(&report, &applied),
            json!({
                "schema": 1,
                "version": env!("CARGO_PKG_VERSION"),
                "findings": [
                    finding_json(json!(["ip link set wg0 mtu 1340"]), Value::Null),
                    finding_json(json!([]), json!("do")),
                ],
                "unknown": ["u"],
                "applied": [
                    { "command": "ip link set wg0 mtu 1340", "error": "permission denied" },
                ],
            })
        );
    }

    #[test]
    fn the_outcome_of_each_setting_is_reported() {
        let undone = [
            (Setting::mtu("wg0", 1420), UndoOutcome::Restored),
            (Setting::mtu("wg1", 1420), UndoOutcome::Changed("1300".into())),
        ];
        let finding_json = &describe_undone(&undone)["undone"];
        assert_eq!(
            (&finding_json[0]["outcome"], &finding_json[0]["detail"]),
            (&json!("restored"), &Value::Null)
        );
        assert_eq!(
            (&finding_json[1]["outcome"], &finding_json[1]["detail"]),
            (&json!("changed"), &json!("1300"))
        );
    }
}
