//! The sections ssh and sshTests.

use std::time::Duration;

use super::{At, NO_POSTURE, Reader, Side};
use crate::{
    alias::{Alias, Autogroup},
    hujson::Kind,
    model::{Location, Ssh, SshTest},
    refusal::{Reason, TestFault},
};

/// The maximum and the default of checkPeriod: a week and twelve hours (Tailscale's documentation).
const MAX_PERIOD: Duration = Duration::from_secs(7 * 24 * 3600);
const DEFAULT_PERIOD: Duration = Duration::from_secs(12 * 3600);

impl Reader {
    pub(super) fn ssh(&mut self, at: &At<'_>) {
        for rule in self.list(at) {
            let read = self.ssh_rule(&rule);
            self.policy.ssh.extend(read);
        }
    }

    /// Parses a rule. Returns `None` if it has an unsupported condition.
    fn ssh_rule(&mut self, rule: &At<'_>) -> Option<Ssh> {
        let mut read = Ssh {
            location: rule.location(),
            sources: Vec::new(),
            targets: Vec::new(),
            users: Vec::new(),
            is_checked: false,
            period: Some(DEFAULT_PERIOD),
            environment: Vec::new(),
        };
        let mut action = String::new();
        let mut period = None;
        let mut is_left_out = false;
        for (name, field) in self.fields(rule) {
            match name.as_str() {
                "action" => {
                    action = self.optional_text(&field).unwrap_or_default().trim().to_owned();
                    if !matches!(action.as_str(), "accept" | "check" | "") {
                        self.fault(&field, Reason::SshAction(action.clone()));
                    }
                }
                "src" => read.sources = self.ssh_sources(&field),
                "dst" => read.targets = self.ssh_targets(&field),
                "users" => read.users = self.login_users(&field),
                "checkperiod" if field.value.kind == Kind::Null => {}
                "checkperiod" => {
                    read.period = self.period(&field);
                    period = Some(field);
                }
                "acceptenv" => {
                    read.environment = self.texts(&field);
                    if read.environment.iter().any(String::is_empty) {
                        self.fault(&field, Reason::SshEnvironment);
                    }
                }
                "srcposture" => is_left_out |= self.has_condition(&field, NO_POSTURE),
                "recorder" | "enforcerecorder" => {
                    is_left_out |= self.has_condition(&field, ": logins are not recorded");
                }
                _ => self.unknown(&field),
            }
        }
        read.is_checked = action == "check";
        match action.as_str() {
            "" => self.fault(rule, Reason::SshNoAction),
            "accept" => {
                if let Some(field) = period {
                    self.fault(&field, Reason::PeriodWithoutCheck);
                }
            }
            _ => {}
        }
        if read.users.is_empty() {
            self.fault(rule, Reason::SshNoUsers);
        }
        self.ssh_sides(rule, &read);
        (!is_left_out).then_some(read)
    }

    fn ssh_sources(&mut self, at: &At<'_>) -> Vec<Alias> {
        let sources = self.aliases(at, Side::Source);
        for source in &sources {
            let is_allowed = match source {
                Alias::User(_) | Alias::Domain(_) | Alias::Group(_) | Alias::Tag(_) => true,
                Alias::Auto(group) => *group != Autogroup::DangerAll,
                _ => false,
            };
            if !is_allowed {
                self.fault(at, Reason::SshSource(source.to_string()));
            }
        }
        sources
    }

    fn ssh_targets(&mut self, at: &At<'_>) -> Vec<Alias> {
        let targets = self.aliases(at, Side::Target);
        for target in &targets {
            let is_allowed = match target {
                Alias::User(_) | Alias::Tag(_) => true,
                Alias::Auto(group) => *group != Autogroup::Internet,
                _ => false,
            };
            if !is_allowed {
                self.fault(at, Reason::SshTarget(target.to_string()));
            }
        }
        targets
    }

    /// Checks that tags do not reach nodes of users, and that users reach nodes of other users by autogroups
    /// only.
    fn ssh_sides(&mut self, rule: &At<'_>, ssh: &Ssh) {
        let is_tagged =
            |alias: &Alias| matches!(alias, Alias::Tag(_) | Alias::Auto(Autogroup::Tagged));
        let has_tags = ssh.sources.iter().any(is_tagged);
        for target in &ssh.targets {
            match target {
                Alias::Auto(Autogroup::Itself | Autogroup::Member) | Alias::User(_) if has_tags => {
                    self.fault(rule, Reason::SshTagToUser);
                }
                Alias::User(_) if ssh.sources.iter().any(|source| source != target) => {
                    self.fault(rule, Reason::SshOtherUser);
                }
                _ => {}
            }
        }
    }

    fn login_users(&mut self, at: &At<'_>) -> Vec<String> {
        let mut users = Vec::new();
        for user in self.list(at) {
            let Some(name) = self.text(&user).map(str::trim) else { continue };
            if matches!(name, "" | "*") {
                self.fault(&user, Reason::SshUser(name.into()));
            }
            users.push(name.to_owned());
        }
        users
    }

    fn period(&mut self, at: &At<'_>) -> Option<Duration> {
        let text = self.text(at)?;
        if text == "always" {
            return None;
        }
        let Some((is_negative, period)) = duration(text) else {
            self.fault(at, Reason::Period(text.into()));
            return None;
        };
        if is_negative && !period.is_zero() {
            self.fault(at, Reason::PeriodNegative(format!("-{}", format_duration(period))));
        } else if period > MAX_PERIOD {
            self.fault(at, Reason::PeriodTooLong(format_duration(period)));
        }
        Some(period)
    }

    pub(super) fn ssh_tests(&mut self, at: &At<'_>) {
        for rule in self.list(at) {
            self.ssh_test(&rule);
        }
    }

    fn ssh_test(&mut self, rule: &At<'_>) {
        let (mut source, mut has_source) = (None, false);
        let (mut targets, mut has_targets) = (Vec::new(), false);
        let (mut accept, mut deny, mut check) = (Vec::new(), Vec::new(), Vec::new());
        for (name, field) in self.fields(rule) {
            match name.as_str() {
                "src" => {
                    has_source = true;
                    source = self.alias(&field, Side::Source);
                }
                "dst" => {
                    for target in self.list(&field) {
                        has_targets = true;
                        targets.extend(self.ssh_test_target(&target));
                    }
                }
                "accept" => accept = self.texts(&field),
                "deny" => deny = self.texts(&field),
                "check" => check = self.texts(&field),
                _ => self.unknown(&field),
            }
        }
        let location: Location = rule.location();
        if !has_source {
            return self.fault(rule, Reason::Test(TestFault::NoSource));
        }
        if !has_targets || (accept.is_empty() && deny.is_empty() && check.is_empty()) {
            self.fault(rule, Reason::Test(TestFault::Nothing));
        }
        // A test with an unsupported source is omitted.
        let Some(source) = source else { return };
        self.policy.ssh_tests.push(SshTest { location, source, targets, accept, deny, check });
    }

    fn ssh_test_target(&mut self, at: &At<'_>) -> Option<Alias> {
        let text = self.text(at)?;
        let alias = match Alias::parse(text) {
            Ok(alias) => alias,
            Err(reason) => {
                self.refuse(at, reason);
                return None;
            }
        };
        self.mention(at, text, &alias);
        let is_single = |net: &ipnet::IpNet| net.prefix_len() == net.max_prefix_len();
        let is_allowed = match &alias {
            Alias::Tag(name) if !self.policy.tag_owners.contains_key(name) => {
                self.fault(at, Reason::SshTestTag(name.clone()));
                return None;
            }
            Alias::Net(net) => is_single(net),
            Alias::Host(name) => self.policy.hosts.get(name).is_none_or(is_single),
            Alias::Any | Alias::Set(_) | Alias::Auto(Autogroup::Internet) => false,
            _ => true,
        };
        if !is_allowed {
            self.fault(at, Reason::SshTestTarget(alias.to_string()));
        }
        self.defined(at, &alias, "");
        Some(alias)
    }
}

/// Parses a duration in Go's format, like `1h30m` or `-2s`. Returns its sign and absolute value.
fn duration(text: &str) -> Option<(bool, Duration)> {
    let is_negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Some((is_negative, Duration::ZERO));
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|next: char| !next.is_ascii_digit() && next != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let length =
            rest.find(|next: char| next.is_ascii_digit() || next == '.').unwrap_or(rest.len());
        let unit = match &rest[..length] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += number * unit;
        rest = &rest[length..];
    }
    let total = if text.is_empty() { return None } else { total };
    Duration::try_from_secs_f64(total).ok().map(|duration| (is_negative, duration))
}

/// Formats a duration as Go does.
fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}
