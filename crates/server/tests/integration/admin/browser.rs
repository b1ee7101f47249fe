//! The page in a real browser. With LINERATE_PICTURES=FOLDER, screenshots of all pages are saved
//! there.

use std::{env, fs, path::Path};

use hyper::Method;
use serde_json::{Value, json};
use skips::skip;

use super::{chromium::Chromium, world::World};

/// Maximum time from the request to the complete page, in milliseconds.
const MOST_MS: f64 = 100.0;
/// Maximum size of a page with its files, in bytes.
const MOST_BYTES: f64 = 150_000.0;
/// Number of attempts, of which the best counts, because other tests use the CPU as well.
const TRIES: usize = 5;

const PAGES: [&str; 13] = [
    "machines",
    "machines/1",
    "machines/2",
    "users",
    "users/1",
    "keys",
    "policy",
    "routes",
    "dns",
    "derp",
    "audit",
    "why",
    "why?from=laptop&to=10.1.2.3&port=22",
];

#[tokio::test]
async fn every_page_is_fast_and_small_and_fits_a_phone() {
    let (world, origin) = furnished().await;
    let Some(mut browser) = Chromium::start(&world.folder().join("profile")).await else {
        return skip("chromium");
    };
    log_in(&world, &mut browser, &origin).await;
    for page in PAGES {
        let url = format!("{origin}/admin/{page}");
        browser.size(1280, 800, false).await;
        let mut best = f64::MAX;
        for _ in 0..TRIES {
            browser.open(&url).await;
            let took =
                browser.value("performance.getEntriesByType('navigation')[0].duration").await;
            best = best.min(took.as_f64().unwrap());
        }
        let sizes = "[...performance.getEntriesByType('navigation'), \
                     ...performance.getEntriesByType('resource')]\
                     .reduce((sum, one) => sum + one.decodedBodySize, 0)";
        let bytes = browser.value(sizes).await.as_f64().unwrap();
        println!("{page}: {best:.0} ms, {bytes} bytes");
        assert!(best < MOST_MS, "{page}: {best} ms");
        assert!(bytes < MOST_BYTES && bytes > 1000.0, "{page}: {bytes} bytes");
        picture(&mut browser, page, "light").await;
        browser.is_dark(true).await;
        picture(&mut browser, page, "dark").await;
        browser.is_dark(false).await;
        browser.size(360, 740, true).await;
        browser.open(&url).await;
        let wide = browser.value("document.documentElement.scrollWidth - innerWidth").await;
        assert!(wide.as_i64().unwrap() <= 0, "{page} is {wide} wider than a phone");
        picture(&mut browser, page, "phone").await;
    }
    for event in &browser.events {
        let parameters = &event["params"];
        let method = event["method"].as_str().unwrap_or_default();
        let is_noise = match method {
            "Runtime.exceptionThrown" => true,
            "Runtime.consoleAPICalled" => true,
            "Log.entryAdded" => parameters["entry"]["level"] != "verbose",
            "Network.requestWillBeSent" => {
                let url = parameters["request"]["url"].as_str().unwrap_or_default();
                !url.starts_with(&origin) && !url.starts_with("about:") && !url.starts_with("data:")
            }
            _ => false,
        };
        assert!(!is_noise, "{event}");
    }
}

#[tokio::test]
async fn users_and_machines_can_be_edited_by_keyboard_alone() {
    let (world, origin) = furnished().await;
    let Some(mut browser) = Chromium::start(&world.folder().join("profile")).await else {
        return skip("chromium");
    };
    log_in(&world, &mut browser, &origin).await;
    browser.open(&format!("{origin}/admin/users")).await;
    tab_to(&mut browser, "document.activeElement.name === 'name'").await;
    browser.command("Input.insertText", json!({ "text": "clara" })).await;
    browser.press("Enter", 13).await;
    browser.until("document.querySelector('#list').textContent.includes('clara')").await;
    // Changes by others appear without a reload.
    world.command(Method::POST, "user", json!({ "name": "dora" })).await;
    browser.until("document.querySelector('#list').textContent.includes('dora')").await;
    browser.open(&format!("{origin}/admin/machines/1")).await;
    tab_to(&mut browser, "document.activeElement.id === 'name'").await;
    browser.value("document.activeElement.select()").await;
    browser.command("Input.insertText", json!({ "text": "notebook" })).await;
    browser.press("Enter", 13).await;
    browser.until("document.querySelector('h1').textContent.includes('notebook')").await;
    let node = world.command(Method::GET, "node/1", json!(null)).await;
    assert_eq!(node["given_name"], "notebook");
    let audit = world.command(Method::GET, "audit?limit=1", json!(null)).await;
    assert_eq!(audit[0]["what"], "rename node 1 to notebook");
    assert_eq!(audit[0]["who"], "page, by a link");
}

#[tokio::test]
async fn a_new_key_is_shown_once_and_routes_can_be_approved() {
    let (world, origin) = furnished().await;
    let Some(mut browser) = Chromium::start(&world.folder().join("profile")).await else {
        return skip("chromium");
    };
    log_in(&world, &mut browser, &origin).await;
    browser.open(&format!("{origin}/admin/keys")).await;
    browser.value("document.querySelector('[name=user]').value = 'anna'").await;
    browser.value("document.querySelector('form[data-show=made] button').click()").await;
    let shown = "document.querySelector('#made:not([hidden]) code')?.textContent";
    browser.until(&format!("({shown} ?? '').startsWith('lrkey-auth-')")).await;
    let key = browser.value(shown).await;
    picture(&mut browser, "keys", "made").await;
    browser.open(&format!("{origin}/admin/keys")).await;
    let text = browser.value("document.documentElement.innerHTML").await;
    let secret = key.as_str().unwrap().rsplit('-').next().unwrap();
    assert!(secret.len() == 64 && !text.as_str().unwrap().contains(secret));
    browser.open(&format!("{origin}/admin/routes")).await;
    browser.value("document.querySelector('.acts button').click()").await;
    browser.until("document.querySelector('#list').textContent.includes('Withdraw')").await;
    let node = world.command(Method::GET, "node/2", json!(null)).await;
    assert_eq!(node["approved_routes"], json!(["10.0.0.0/8"]));
}

#[tokio::test]
async fn a_policy_is_checked_and_saved_and_a_wrong_line_is_marked() {
    let (world, origin) = furnished().await;
    let Some(mut browser) = Chromium::start(&world.folder().join("profile")).await else {
        return skip("chromium");
    };
    log_in(&world, &mut browser, &origin).await;
    browser.open(&format!("{origin}/admin/policy")).await;
    let text = "document.querySelector('textarea')";
    let write = |policy: &str| {
        format!("{text}.value = {}, {text}.dispatchEvent(new Event('input'))", json!(policy))
    };
    let check = "document.getElementById('check').click()";
    browser.value(&write("{\n  \"acls\": [{\n    \"src\": 7\n  }]\n}")).await;
    browser.value(check).await;
    browser.until("document.querySelector('#message .wrong')?.textContent.includes('line ')").await;
    let marked = browser.value(&format!("getSelection().toString() || {text}.value.slice({text}.selectionStart, {text}.selectionEnd)")).await;
    assert!(!marked.as_str().unwrap().is_empty());
    picture(&mut browser, "policy", "wrong").await;
    assert_eq!(browser.value("document.getElementById('save').disabled").await, true);
    let good = r#"{ "acls": [{ "action": "accept", "src": ["anna@"], "dst": ["tag:server:22"] }],
        "tagOwners": { "tag:server": [], "tag:prod": [] } }"#;
    browser.value(&write(good)).await;
    browser.value(check).await;
    browser.until("!document.getElementById('save').disabled").await;
    let lines = browser.value("document.querySelector('#difference pre').textContent").await;
    assert!(lines.as_str().unwrap().contains("laptop"), "{lines}");
    picture(&mut browser, "policy", "difference").await;
    assert_eq!(world.command(Method::GET, "policy", json!(null)).await["policy"], "");
    browser.value("document.getElementById('save').click()").await;
    browser.until("document.getElementById('state').textContent.includes('Number 1')").await;
    assert_eq!(world.command(Method::GET, "policy", json!(null)).await["policy"], good);
}

/// A network with some users and machines.
async fn furnished() -> (World, String) {
    let world = World::new().await;
    for (name, shown) in [("anna", "Anna Ek"), ("ben", "")] {
        let user =
            json!({ "name": name, "display_name": shown, "email": format!("{name}@example.com") });
        world.command(Method::POST, "user", user).await;
    }
    let key = |body: Value| world.command(Method::POST, "preauthkey", body);
    let text = |key: &Value| key["key"].as_str().unwrap().to_owned();
    let anna = text(&key(json!({ "user": "anna", "reusable": true })).await);
    let server = text(&key(json!({ "acl_tags": ["tag:server", "tag:prod"] })).await);
    let linux = |name: &str| json!({ "Hostname": name, "OS": "linux", "OSVersion": "13 (trixie)", "IPNVersion": "1.102.5" });
    world.join(1, &anna, linux("laptop")).await;
    let mut router = linux("router");
    router["RoutableIPs"] = json!(["10.0.0.0/8"]);
    world.join(2, &server, router).await;
    let phone =
        json!({ "Hostname": "<script>alert(1)</script>", "OS": "iOS", "IPNVersion": "1.98.2" });
    world.join(3, &anna, phone).await;
    world.command(Method::POST, "node/3/expire", json!(null)).await;
    world.command(Method::POST, "node/1/expire?expiry=2099-01-01T00:00:00Z", json!(null)).await;
    world.api_key().await;
    let origin = format!("http://localhost:{}", world.address.port());
    (world, origin)
}

/// Opens the page with a link.
async fn log_in(world: &World, browser: &mut Chromium, origin: &str) {
    browser.open(&format!("{origin}/admin/login")).await;
    picture(browser, "login", "light").await;
    browser.open(&format!("{origin}/admin/dns?")).await;
    let link = world.link().await;
    browser.open("about:blank").await;
    browser.open(&format!("{origin}/admin/login#{link}")).await;
    browser
        .until("location.pathname === '/admin/machines' && document.readyState === 'complete'")
        .await;
    let cookies = browser.value("document.cookie").await;
    assert_eq!(cookies, "", "scripts see the session");
}

/// Presses Tab until an element has the focus.
async fn tab_to(browser: &mut Chromium, expression: &str) {
    for _ in 0..60 {
        if browser.value(expression).await == true {
            return;
        }
        browser.press("Tab", 9).await;
    }
    panic!("the keyboard does not get there: {expression}");
}

async fn picture(browser: &mut Chromium, page: &str, kind: &str) {
    let Some(folder) = env::var_os("LINERATE_PICTURES") else { return };
    let name = page.replace(['/', '?', '&', '='], "-");
    let picture = browser.picture().await;
    fs::write(Path::new(&folder).join(format!("{name}.{kind}.png")), picture).unwrap();
}
