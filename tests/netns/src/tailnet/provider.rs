//! An identity provider on the coordinator's host: npm's oidc-provider, where users log in by name.

use std::path::PathBuf;

use serde_json::Value;

use super::coordinator::Coordinator;
use crate::host::Host;
use crate::implementation::peers;
use crate::service::Service;

const PORT: u16 = 4000;
const CALLBACK: &str = "/oidc/callback";
/// The browser's cookies.
const JAR: &str = "/run/rig/cookies";

/// An identity provider.
pub struct Provider {
    host: Host,
    url: String,
    service: Option<Service>,
}

/// The last page of a browser.
#[derive(Debug)]
pub struct Page {
    /// The HTTP status.
    pub status: u16,
    /// Its URL.
    pub url: String,
    /// Its HTML.
    pub text: String,
}

impl Page {
    /// The value of a hidden field.
    ///
    /// # Panics
    /// If it is absent.
    pub fn field(&self, name: &str) -> String {
        let field = self.text.split(&format!("name=\"{name}\" value=\"")).nth(1);
        let value = field.and_then(|rest| rest.split('"').next());
        value.unwrap_or_else(|| panic!("no field {name}: {self:?}")).to_owned()
    }
}

impl Provider {
    /// The path where `tests/netns/peers` installs it, if it exists.
    pub fn program() -> Option<PathBuf> {
        let path = peers().parent()?.join("provider/provider.js");
        path.is_file().then_some(path)
    }

    /// Starts it with these users, an object of claims by name, and configures the coordinator for it;
    /// `more` are lines of that configuration table. `None` if the provider is not built, which is
    /// announced.
    ///
    /// # Panics
    /// If either does not start; its log is in the message.
    pub fn start(coordinator: &mut Coordinator, users: &Value, more: &str) -> Option<Self> {
        if Self::program().is_none() {
            skips::skip("oidc-provider (tests/netns/peers tailnet)");
            return None;
        }
        let host = coordinator.host.clone();
        let url = format!("{}:{PORT}", coordinator.url());
        let mut provider = Self { host, url, service: None };
        provider.set_users(users);
        provider.restart();
        coordinator.configure(&format!(
            "[oidc]\nissuer = \"{}\"\nclient_id = \"net\"\nclient_secret = \"hush\"\n{more}\n",
            provider.url
        ));
        Some(provider)
    }

    /// Sets the users, from the next login on.
    pub fn set_users(&self, users: &Value) {
        self.host.write("users.json", &users.to_string());
    }

    /// Starts it with new keys.
    ///
    /// # Panics
    /// If it does not start; its log is in the message.
    pub fn restart(&mut self) {
        self.service = None;
        let program = Self::program().expect("it was found at the start");
        let callback = self.url.replace(&format!(":{PORT}"), CALLBACK);
        let words = format!(
            "node {} {} /run/rig/tls.pem /run/rig/tls.key /run/rig/users.json {callback}",
            program.display(),
            self.url
        );
        let service = Service::start(&self.host, "provider", words.split(' '));
        self.service = Some(service.wait_until(|| self.host.listens(PORT)));
    }

    /// Ends it.
    pub fn kill(&mut self) {
        self.service = None;
    }

    /// Opens a link in a browser and logs in as `user`. Returns the last page.
    ///
    /// # Panics
    /// If the provider has unexpected pages.
    pub fn log_in(&self, browser: &Host, link: &str, user: &str) -> Page {
        browser.run(format!("rm -f {JAR}"));
        let page = open(browser, link, &[]);
        assert!(page.url.starts_with(&self.url), "the link leads to the provider: {page:?}");
        let page = open(browser, &page.url, &[("prompt", "login"), ("login", user)]);
        open(browser, &page.url, &[("prompt", "consent")])
    }

    /// Opens a link in a browser without cookies.
    pub fn open(browser: &Host, link: &str) -> Page {
        browser.run(format!("rm -f {JAR}"));
        open(browser, link, &[])
    }

    /// Confirms the coordinator's question.
    ///
    /// # Panics
    /// If the question is absent.
    pub fn confirm(&self, browser: &Host, question: &Page) -> Page {
        let token = question.field("token");
        let url = self.url.replace(&format!(":{PORT}"), "/oidc/confirm");
        open(browser, &url, &[("token", &token)])
    }
}

/// Opens a page or posts a form, and follows redirects.
fn open(browser: &Host, url: &str, form: &[(&str, &str)]) -> Page {
    let fields: Vec<String> =
        form.iter().map(|(name, value)| format!("--data-urlencode '{name}={value}'")).collect();
    let line = format!(
        "curl -sS --max-time 30 --cacert /run/rig/ca.pem -L -b {JAR} -c {JAR} {} \
         -w '\\n%{{http_code}} %{{url_effective}}' '{url}'",
        fields.join(" ")
    );
    let output = browser.run(line);
    let (text, end) = output.rsplit_once('\n').unwrap_or_default();
    let (status, url) = end.split_once(' ').unwrap_or_default();
    let status = status.parse().unwrap_or_default();
    Page { status, url: url.to_owned(), text: text.to_owned() }
}
