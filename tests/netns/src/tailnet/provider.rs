//! A provider of identities on the coordinator's host: the one of npm's oidc-provider, where users
//! log in by their names.

use std::path::PathBuf;

use serde_json::Value;

use super::coordinator::Coordinator;
use crate::host::Host;
use crate::implementation::peers;
use crate::service::Service;

const PORT: u16 = 4000;
const CALLBACK: &str = "/oidc/callback";
/// Where a browser has its cookies.
const JAR: &str = "/run/rig/cookies";

/// A provider of identities.
pub struct Provider {
    host: Host,
    url: String,
    service: Option<Service>,
}

/// What a browser ended at.
#[derive(Debug)]
pub struct Page {
    /// The status of HTTP.
    pub status: u16,
    /// Where it is.
    pub url: String,
    /// What it says, as HTML.
    pub text: String,
}

impl Page {
    /// The value of a hidden field.
    ///
    /// # Panics
    /// When there is none.
    pub fn field(&self, name: &str) -> String {
        let field = self.text.split(&format!("name=\"{name}\" value=\"")).nth(1);
        let value = field.and_then(|rest| rest.split('"').next());
        value.unwrap_or_else(|| panic!("no field {name}: {self:?}")).to_owned()
    }
}

impl Provider {
    /// Where `tests/netns/peers` has put it, if it could.
    pub fn program() -> Option<PathBuf> {
        let path = peers().parent()?.join("provider/provider.js");
        path.is_file().then_some(path)
    }

    /// Starts it with these users, an object of claims by name, and has the coordinator know it;
    /// `more` stands in the table of its configuration. Nothing where the provider is not built,
    /// which is announced.
    ///
    /// # Panics
    /// When either does not start; its log is in the message.
    pub fn start(coordinator: &mut Coordinator, users: &Value, more: &str) -> Option<Provider> {
        if Provider::program().is_none() {
            skips::skip("oidc-provider (tests/netns/peers tailnet)");
            return None;
        }
        let host = coordinator.host.clone();
        let url = format!("{}:{PORT}", coordinator.url());
        let mut provider = Provider { host, url, service: None };
        provider.set_users(users);
        provider.start_again();
        coordinator.configure(&format!(
            "[oidc]\nissuer = \"{}\"\nclient_id = \"net\"\nclient_secret = \"hush\"\n{more}\n",
            provider.url
        ));
        Some(provider)
    }

    /// Sets who there is, from the next login on.
    pub fn set_users(&self, users: &Value) {
        self.host.write("users.json", &users.to_string());
    }

    /// Starts it, with new keys.
    ///
    /// # Panics
    /// When it does not start; its log is in the message.
    pub fn start_again(&mut self) {
        self.service = None;
        let program = Provider::program().expect("it was there at the start");
        let callback = self.url.replace(&format!(":{PORT}"), CALLBACK);
        let words = format!(
            "node {} {} /run/rig/tls.pem /run/rig/tls.key /run/rig/users.json {callback}",
            program.display(),
            self.url
        );
        let service = Service::start(&self.host, "provider", words.split(' '));
        self.service = Some(service.until(|| self.host.listens(PORT)));
    }

    /// Ends it.
    pub fn kill(&mut self) {
        self.service = None;
    }

    /// Opens a link in a browser and logs in as somebody: where that ends.
    ///
    /// # Panics
    /// When the provider has other pages than it should.
    pub fn log_in(&self, browser: &Host, link: &str, user: &str) -> Page {
        browser.run(format!("rm -f {JAR}"));
        let page = open(browser, link, &[]);
        assert!(page.url.starts_with(&self.url), "the link leads to the provider: {page:?}");
        let page = open(browser, &page.url, &[("prompt", "login"), ("login", user)]);
        open(browser, &page.url, &[("prompt", "consent")])
    }

    /// Opens a link in a browser with an empty jar of cookies.
    pub fn open(browser: &Host, link: &str) -> Page {
        browser.run(format!("rm -f {JAR}"));
        open(browser, link, &[])
    }

    /// Presses the button of the coordinator's question.
    ///
    /// # Panics
    /// When there is none.
    pub fn confirm(&self, browser: &Host, question: &Page) -> Page {
        let token = question.field("token");
        let url = self.url.replace(&format!(":{PORT}"), "/oidc/confirm");
        open(browser, &url, &[("token", &token)])
    }
}

/// Opens a page, or posts a form, and goes where that leads.
fn open(browser: &Host, url: &str, form: &[(&str, &str)]) -> Page {
    let fields: Vec<String> =
        form.iter().map(|(name, value)| format!("--data-urlencode '{name}={value}'")).collect();
    let line = format!(
        "curl -sS --max-time 30 --cacert /run/rig/ca.pem -L -b {JAR} -c {JAR} {} \
         -w '\\n%{{http_code}} %{{url_effective}}' '{url}'",
        fields.join(" ")
    );
    let said = browser.run(line);
    let (text, end) = said.rsplit_once('\n').unwrap_or_default();
    let (status, url) = end.split_once(' ').unwrap_or_default();
    let status = status.parse().unwrap_or_default();
    Page { status, url: url.to_owned(), text: text.to_owned() }
}
