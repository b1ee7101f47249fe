//! Nodes that are admitted by a login at a real identity provider.

use netns::{Family, Member, MemberKind, Page, Provider, Tailnet, Uplink, eventually};
use serde_json::{Value, json};

use super::policy::set;
use super::ssh::{Login, rule};
use super::{PATIENCE, join, number, start};

fn state(member: &Member) -> String {
    member.status()["BackendState"].as_str().unwrap_or_default().to_owned()
}

fn users() -> Value {
    let user = |name: &str, domain: &str, verified: bool| {
        json!({ "email": format!("{name}@{domain}"), "email_verified": verified, "name": name,
                "preferred_username": name, "groups": ["staff"] })
    };
    json!({
        "clara": user("clara", "net.test", true), "dora": user("dora", "net.test", true),
        "mallory": user("mallory", "else.test", true), "eve": user("eve", "net.test", false),
    })
}

const TABLE: &str = "scope = [\"openid\", \"profile\", \"email\", \"groups\"]\n\
                     allowed_domains = [\"net.test\"]";

fn start_with_provider() -> Option<(Tailnet, Provider)> {
    let mut tailnet = start()?;
    let provider = Provider::start(&mut tailnet.coordinator, &users(), TABLE)?;
    Some((tailnet, provider))
}

fn newcomer(tailnet: &Tailnet, name: &str) -> Member {
    Member::start(tailnet.host(name, Uplink::Switch), MemberKind::Tailscaled)
}

/// The login link of a client without a key.
fn link(tailnet: &Tailnet, member: &Member, flags: &str) -> String {
    let (url, name) = (tailnet.coordinator.url(), member.host.name());
    let up = format!("up --login-server={url} --hostname={name} --timeout=3s {flags}");
    let output = member.tailscale(&up);
    assert!(!output.ok, "it is not admitted yet: {output:?}");
    let mut words = output.stderr.split_whitespace();
    let link = words.find(|word| word.contains("/register/"));
    link.unwrap_or_else(|| panic!("a link: {output:?}")).to_owned()
}

/// Admits a member by a user's login in a browser on its own host.
fn admit(tailnet: &Tailnet, provider: &Provider, member: &Member, flags: &str, user: &str) {
    let link = link(tailnet, member, flags);
    let question = provider.log_in(&member.host, &link, user);
    assert!(question.status == 200 && question.text.contains(member.host.name()), "{question:?}");
    let done = provider.confirm(&member.host, &question);
    assert_eq!(done.status, 200, "{done:?}");
    eventually("it runs", PATIENCE, || state(member) == "Running");
}

/// The permanent properties of a node.
fn permanent_properties(tailnet: &Tailnet, name: &str) -> [String; 3] {
    let nodes = tailnet.coordinator.nodes();
    let node = nodes.iter().find(|node| node["given_name"] == name).expect("the node is there");
    assert_eq!(node["register_method"], "oidc");
    ["id", "ip_addresses", "given_name"].map(|field| node[field].to_string())
}

fn user(tailnet: &Tailnet, name: &str) -> Value {
    let users = tailnet.coordinator.command("users list --output json");
    let users: Vec<Value> = serde_json::from_str(&users).expect("a list of users");
    users.into_iter().find(|user| user["name"] == name).unwrap_or_default()
}

#[test]
fn a_login_admits_a_machine_and_later_logins_preserve_the_node() {
    let Some((tailnet, provider)) = start_with_provider() else { return };
    let other = join(&tailnet, "other", MemberKind::Tailscaled, "");
    let one = newcomer(&tailnet, "one");
    let first_link = link(&tailnet, &one, "");
    let question = provider.log_in(&one.host, &first_link, "clara");
    assert!(question.text.contains("clara@net.test"), "{question:?}");
    assert_eq!(user(&tailnet, "clara"), Value::Null, "nothing changes before the confirmation");
    assert_eq!(provider.confirm(&one.host, &question).status, 200);
    eventually("it runs", PATIENCE, || state(&one) == "Running");
    let clara = user(&tailnet, "clara");
    assert_eq!((&clara["email"], &clara["groups"]), (&json!("clara@net.test"), &json!(["staff"])));
    let before = permanent_properties(&tailnet, "one");

    assert!(one.tailscale("logout").ok);
    let mut changed = users();
    changed["clara"]["groups"] = json!(["boss", "staff"]);
    provider.set_users(&changed);
    admit(&tailnet, &provider, &one, "", "clara");
    assert_eq!(permanent_properties(&tailnet, "one"), before, "after a logout");
    assert_eq!(user(&tailnet, "clara")["groups"], json!(["boss", "staff"]));

    admit(&tailnet, &provider, &one, "--force-reauth", "clara");
    assert_eq!(permanent_properties(&tailnet, "one"), before, "with a new key");

    tailnet.coordinator.command(&format!("nodes expire -i {}", number(&tailnet, "one")));
    eventually("its key expires", PATIENCE, || state(&one) == "NeedsLogin");
    admit(&tailnet, &provider, &one, "", "clara");
    assert_eq!(permanent_properties(&tailnet, "one"), before, "after its key expired");
    let v4 = one.status()["Self"]["TailscaleIPs"][0].as_str().unwrap_or_default().to_owned();
    eventually("its peers reach it", PATIENCE, || {
        netns::ping(&other.host, format!("-c 1 -W 1 {v4}")).is_complete()
    });
    let gone = Provider::open(&one.host, &first_link);
    assert!(gone.status == 404 && gone.text.contains("the machine was admitted"), "{gone:?}");
}

#[test]
fn unauthorized_users_and_other_browsers_are_refused() {
    let Some((tailnet, provider)) = start_with_provider() else { return };
    let one = newcomer(&tailnet, "one");
    let link = link(&tailnet, &one, "");
    for (name, words) in [("mallory", "not allowed"), ("eve", "not verified")] {
        let page = provider.log_in(&one.host, &link, name);
        assert!(page.status == 403 && page.text.contains(words), "{page:?}");
        assert_eq!(user(&tailnet, name), Value::Null);
    }
    let browser = tailnet.host("browser", Uplink::Switch);
    let question = provider.log_in(&one.host, &link, "clara");
    let from_elsewhere = provider.confirm(&browser, &question);
    assert_eq!(from_elsewhere.status, 410, "{from_elsewhere:?}");
    assert_eq!(provider.confirm(&one.host, &question).status, 410, "a question is asked once");
    let again = Provider::open(&one.host, &question.url);
    assert_eq!(again.status, 410, "a code is valid once: {again:?}");
    assert!(tailnet.coordinator.nodes().is_empty());
    assert_eq!(state(&one), "NeedsLogin");
}

#[test]
fn an_ssh_login_is_confirmed_by_a_login_of_the_same_user() {
    let Some((tailnet, provider)) = start_with_provider() else { return };
    set(&tailnet, &rule(&json!({ "action": "check" })));
    let [one, other] = ["one", "other"].map(|name| newcomer(&tailnet, name));
    admit(&tailnet, &provider, &one, "", "clara");
    admit(&tailnet, &provider, &other, "--ssh", "clara");
    let v4 = other.status()["Self"]["TailscaleIPs"][0].as_str().unwrap_or_default().to_owned();
    eventually("they reach each other", PATIENCE, || {
        netns::ping(&one.host, format!("-c 1 -W 1 {v4}")).is_complete()
    });
    let login = Login::start(&one, &v4);
    let link = login.link();
    let strange = provider.log_in(&one.host, &link, "dora");
    assert!(
        strange.status == 403 && strange.text.contains("a machine of another user"),
        "{strange:?}"
    );
    let question = provider.log_in(&one.host, &link, "clara");
    assert!(question.text.contains("root") && question.text.contains("other"), "{question:?}");
    assert_eq!(provider.confirm(&one.host, &question).status, 200);
    assert!(login.end().contains("hello"));
    assert_eq!(Provider::open(&one.host, &link).status, 404, "no login waits any more");
}

#[test]
fn a_login_of_another_user_creates_another_node() {
    let Some((tailnet, provider)) = start_with_provider() else { return };
    let one = newcomer(&tailnet, "one");
    admit(&tailnet, &provider, &one, "", "clara");
    let before = permanent_properties(&tailnet, "one");
    admit(&tailnet, &provider, &one, "--force-reauth", "dora");
    assert_eq!(permanent_properties(&tailnet, "one"), before, "clara's stays");
    let dora = user(&tailnet, "dora")["id"].clone();
    let nodes = tailnet.coordinator.nodes();
    let doras = nodes.iter().filter(|node| node["user"]["id"] == dora);
    assert_eq!((nodes.len(), doras.count()), (2, 1));
}

#[test]
fn a_dead_provider_stops_neither_the_server_nor_its_nodes() {
    let Some((mut tailnet, mut provider)) = start_with_provider() else { return };
    let one = newcomer(&tailnet, "one");
    admit(&tailnet, &provider, &one, "", "clara");
    provider.kill();
    tailnet.coordinator.restart();
    let other = join(&tailnet, "other", MemberKind::Linerate, "");
    let v4 = one.status()["Self"]["TailscaleIPs"][0].as_str().unwrap_or_default().to_owned();
    eventually("nodes stay connected", PATIENCE, || {
        netns::ping(&other.host, format!("-c 1 -W 1 {v4}")).is_complete()
    });
    assert!(other.addresses.of(Family::V4) != v4);
    let two = newcomer(&tailnet, "two");
    let link = link(&tailnet, &two, "");
    let page: Page = Provider::open(&two.host, &link);
    assert_eq!(page.status, 503, "{page:?}");
    assert!(page.text.contains("cannot be reached") && page.text.contains("nodes register"));
    let number = link.rsplit('/').next().unwrap_or_default();
    tailnet.coordinator.command(&format!("nodes register --user rig --key {number}"));
    eventually("an administrator needs no provider", PATIENCE, || state(&two) == "Running");

    // With new keys, twice: the server has cached the previous ones.
    let three = newcomer(&tailnet, "three");
    provider.restart();
    let open = self::link(&tailnet, &three, "");
    eventually("the provider is asked again", PATIENCE, || {
        Provider::open(&three.host, &open).status == 200
    });
    provider.restart();
    admit(&tailnet, &provider, &three, "", "clara");
}
