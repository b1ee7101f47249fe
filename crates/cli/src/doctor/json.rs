//! Output for programs. The schema is `docs/json.md`, which changes with this file.

use doctor::{Finding, Mend, Report, Setting, Undone};
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
    let (commands, advice) = match &finding.mend {
        Mend::Change(settings) => (settings.iter().map(Setting::command).collect(), None),
        Mend::ByHand(words) => (Vec::new(), Some(words)),
        Mend::Nothing => (Vec::new(), None),
    };
    json!({
        "check": finding.check,
        "on": finding.on,
        "weight": finding.weight.name(),
        "what": finding.what,
        "why": finding.why,
        "cost": finding.cost,
        "commands": commands,
        "advice": advice,
    })
}

pub(super) fn describe_undone(undone: &[(Setting, Undone)]) -> Value {
    let one = |(setting, undone): &(Setting, Undone)| {
        let (outcome, detail) = match undone {
            Undone::Restored => ("restored", None),
            Undone::Changed(now) => ("changed", Some(now.clone())),
            Undone::Gone => ("gone", None),
            Undone::Failed(error) => ("failed", Some(error.to_string())),
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
    use doctor::Weight;

    use super::*;

    #[test]
    fn a_report_is_complete() {
        let finding = |mend| Finding {
            check: "mtu",
            on: "wg0".into(),
            weight: Weight::Slow,
            what: "w".into(),
            why: "y".into(),
            cost: "c",
            mend,
        };
        let findings = vec![
            finding(Mend::Change(vec![Setting::mtu("wg0", 1340)])),
            finding(Mend::ByHand("do".into())),
        ];
        let report = Report { findings, unknown: vec!["u".into()] };
        let applied =
            [(Setting::mtu("wg0", 1340), Err(std::io::ErrorKind::PermissionDenied.into()))];
        let told = |commands: Value, advice: Value| {
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
                    told(json!(["ip link set wg0 mtu 1340"]), Value::Null),
                    told(json!([]), json!("do")),
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
            (Setting::mtu("wg0", 1420), Undone::Restored),
            (Setting::mtu("wg1", 1420), Undone::Changed("1300".into())),
        ];
        let told = &describe_undone(&undone)["undone"];
        assert_eq!((&told[0]["outcome"], &told[0]["detail"]), (&json!("restored"), &Value::Null));
        assert_eq!((&told[1]["outcome"], &told[1]["detail"]), (&json!("changed"), &json!("1300")));
    }
}
