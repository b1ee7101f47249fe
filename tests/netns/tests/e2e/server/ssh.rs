//! Tailscale SSH: logins that a policy accepts, and logins that need confirmation.

use netns::{Family, Member, MemberKind, Tailnet, eventually};
use serde_json::{Value, json};

use super::policy::set;
use super::{PATIENCE, join, start};

/// Output of a login.
const OUTPUT: &str = "/run/rig/ssh.log";

/// A policy with one rule for logins between a user's own machines.
pub(super) fn rule(action: &Value) -> Value {
    let mut rule =
        json!({ "src": ["autogroup:member"], "dst": ["autogroup:self"], "users": ["root"] });
    rule.as_object_mut().expect("it is one").extend(action.as_object().expect("it is one").clone());
    json!({ "ssh": [rule] })
}

/// A waiting login.
pub(super) struct Login<'a>(&'a Member);

impl<'a> Login<'a> {
    /// Logs in from one to another, and runs `echo hello`.
    pub(super) fn start(from: &'a Member, to: &str) -> Self {
        let line = words(to);
        from.host.run(format!("rm -f {OUTPUT}; ({line}; echo ended) >{OUTPUT} 2>&1 </dev/null &"));
        Login(from)
    }

    /// The confirmation link.
    pub(super) fn link(&self) -> String {
        let link = || {
            let output = self.output();
            output.split_whitespace().find(|word| word.contains("/ssh/")).map(str::to_owned)
        };
        eventually("the login shows a link", PATIENCE, || link().is_some());
        link().expect("it was present before")
    }

    /// Its output until it ended.
    pub(super) fn end(&self) -> String {
        eventually("the login ends", PATIENCE, || self.output().contains("ended"));
        self.output()
    }

    fn output(&self) -> String {
        self.0.host.attempt(format!("cat {OUTPUT}")).stdout
    }
}

fn words(to: &str) -> String {
    let options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null";
    format!("timeout 60 ssh -F /dev/null {options} -o BatchMode=yes root@{to} echo hello")
}

fn number(link: &str) -> &str {
    link.rsplit('/').next().unwrap_or_default()
}

/// Two machines of one user; the second accepts logins.
fn pair(tailnet: &Tailnet) -> [Member; 2] {
    let one = join(tailnet, "one", MemberKind::Tailscaled, "");
    let other = join(tailnet, "other", MemberKind::Tailscaled, "--ssh");
    one.reaches(&other, Family::V4);
    [one, other]
}

#[test]
fn a_login_is_accepted_or_needs_confirmation_by_the_policy() {
    let Some(tailnet) = start() else { return };
    set(&tailnet, &rule(&json!({ "action": "accept" })));
    let [one, other] = pair(&tailnet);
    let to = other.addresses.of(Family::V4);
    eventually("a login is accepted", PATIENCE, || {
        one.host.attempt(words(to)).stdout.contains("hello")
    });
    let by_name = one.tailscale("ssh root@other echo hello");
    assert!(by_name.ok && by_name.stdout.contains("hello"), "{by_name:?}");

    set(&tailnet, &rule(&json!({ "action": "check", "checkPeriod": "1h" })));
    let coordinator = &tailnet.coordinator;
    let is_asked = || other.tailscale("debug netmap").stdout.contains("holdAndDelegate");
    eventually("the rule is there", PATIENCE, is_asked);
    let login = Login::start(&one, to);
    let link = login.link();
    let page = one.host.run(format!("curl -s --cacert /run/rig/ca.pem {link}"));
    assert!(page.contains("auth approve --auth-id"), "{page}");
    coordinator.command(&format!("auth approve --auth-id {}", number(&link)));
    assert!(login.end().contains("hello"));
    let again = one.host.attempt(words(to));
    assert!(again.stdout.contains("hello") && !again.stderr.contains("/ssh/"), "{again:?}");

    set(&tailnet, &rule(&json!({ "action": "check", "checkPeriod": "always" })));
    let login = Login::start(&one, to);
    coordinator.command(&format!("auth reject --auth-id {}", number(&login.link())));
    let report = login.end();
    assert!(report.contains("the login was rejected") && !report.contains("hello"), "{report}");
    let audit = coordinator.command("audit");
    assert!(audit.contains("approve the login of one at other as root"), "{audit}");
}
