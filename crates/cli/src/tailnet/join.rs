//! `linerate join`: this machine becomes a node of a tailnet.
//!
//! ```text
//!   join ──► starts the node in the background, unless it is running
//!     |            settings, login ──► the node's socket
//!     `── waits:   an address to log in at ──► printed, with a QR code
//!                  connected ──► returns
//! ```

use std::{
    env,
    ffi::OsString,
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::AsFd as _,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use config::conf::{Conf, Interface, SocketAddress};
use ipnet::IpNet;
use member::client::{Client, ClientError, Notifications};
use process::{
    interface::{self as life, Options},
    member::{self as member_process, local_socket, state_folder},
    proxy::{self, StackChoice},
};
use qrcode::{QrCode, render::unicode::Dense1x2};
use serde_json::{Value, json};
use sys::process::{take_argument, take_variable};
use tokio::time::{Instant, sleep, timeout_at};
use zeroize::Zeroizing;

use super::{Flags, is_running_node, runtime, seconds};
use crate::{
    Sandbox, Started,
    log::Log,
    proxy::{socket_address, with_origin},
    resource_args::ResourceArgs,
};

/// The default interface.
const INTERFACE: &str = "tailnet0";
/// Environment variables that may contain a key.
const KEY_VARIABLES: [&str; 3] = ["LINERATE_AUTH_KEY", "TS_AUTHKEY", "TS_AUTH_KEY"];
/// The maximum length of an auth key, in bytes. Those of Tailscale and headscale have fewer than 100.
const MAX_KEY_LEN: usize = 4096;
/// The states of a node (`ipn/backend.go`, `State`).
const NEEDS_LOGIN: u64 = 2;
const NEEDS_APPROVAL: u64 = 3;
const RUNNING: u64 = 6;
/// Requests a notification of the state, the settings and the login page at once
/// (`NotifyInitialState`).
const INITIAL_STATE: u32 = 1 << 1;
/// The time between two checks whether a new node answers.
const START_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time between two checks whether the coordinator has answered.
const STATUS_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Runs a node until it ends. Calls its argument once the node is ready.
type Run = Box<dyn FnOnce(&mut dyn FnMut()) -> anyhow::Result<()>>;

/// Whether this process is `linerate join`, and may read its key from this variable.
pub(crate) fn is_auth_key_variable(name: &str) -> bool {
    let named = format!("env:{name}");
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let names = |argument: &OsString| argument.to_str().is_some_and(|it| it.ends_with(&named));
    arguments.first().is_some_and(|command| command == "join")
        && (KEY_VARIABLES.contains(&name) || arguments.iter().any(names))
}

/// Takes the value of `--auth-key` if it is the key itself, and overwrites the argument.
pub(crate) fn take_key_argument() -> Option<Zeroizing<String>> {
    let is_key = |value: &str| !value.starts_with("file:") && !value.starts_with("env:");
    take_argument(&["--auth-key", "--authkey"], is_key)
}

/// Arguments of `linerate join`.
#[derive(Args)]
pub(crate) struct Join {
    /// The coordinator, such as https://headscale.example, and the interface. By default the coordinator
    /// of the last join.
    #[arg(value_name = "URL] [IFACE", num_args = 0..=2)]
    url_and_interface: Vec<String>,
    /// A key that admits this machine: file:PATH, env:NAME, or the key itself, which other users can see
    /// in the list of processes. By default the environment variable LINERATE_AUTH_KEY, TS_AUTHKEY or
    /// TS_AUTH_KEY, which may also be file:PATH. Without a key, you log in with a browser.
    #[arg(long, value_name = "KEY", alias = "authkey")]
    auth_key: Option<String>,
    #[arg(skip)]
    key: Option<Zeroizing<String>>,
    /// Log in again even if this machine is logged in.
    #[arg(long)]
    force_reauth: bool,
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    userspace: Userspace,
    /// The folder of this node's keys and state.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Accept addresses of this network from the coordinator, in addition to 100.64.0.0/10,
    /// fd7a:115c:a1e0::/48 and private networks that this machine does not use. Can be repeated. The
    /// node stores the networks for later starts.
    #[arg(long, value_name = "NETWORK")]
    address_range: Vec<IpNet>,
    /// How long to wait for the connection. The time of a login with a browser does not count.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = seconds)]
    timeout: Duration,
    /// Stay in the foreground.
    #[arg(short, long)]
    foreground: bool,
    /// Only log in the node that another process starts. The key is on standard input.
    #[arg(long, hide = true)]
    only_log_in: bool,
    #[command(flatten)]
    sandbox: Sandbox,
    #[command(flatten)]
    resource_args: ResourceArgs,
    #[command(flatten)]
    log: Log,
}

/// Arguments of a node without an interface.
#[derive(Args)]
struct Userspace {
    /// Join without an interface, without root and without a TUN device: programs reach the tailnet
    /// through the proxies of --socks and --http.
    #[arg(long)]
    userspace: bool,
    /// With --userspace, serve SOCKS5 here: ADDRESS:PORT or unix:/PATH.
    #[arg(long, value_name = "ADDRESS", value_parser = socket_address, requires = "userspace")]
    socks: Vec<SocketAddress>,
    /// With --userspace, serve an HTTP proxy here.
    #[arg(long, value_name = "ADDRESS", value_parser = socket_address, requires = "userspace")]
    http: Vec<SocketAddress>,
}

impl Userspace {
    /// The configuration of the proxies.
    fn conf(&self) -> Conf {
        let mut conf = Conf::new(Interface::default(), Vec::new());
        let proxy = &mut conf.interface.proxy;
        let socks = self.socks.iter().cloned();
        proxy.socks = socks.map(|value| with_origin("--socks", value)).collect();
        let http = self.http.iter().cloned();
        proxy.http = http.map(|value| with_origin("--http", value)).collect();
        conf
    }
}

impl Join {
    /// Sets the key that [`take_key_argument`] returned.
    pub(crate) fn set_key(&mut self, key: Option<Zeroizing<String>>) {
        self.key = key;
    }

    pub(crate) fn log(&self) -> Log {
        self.log
    }

    /// Joins, and returns once the node is connected.
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        let (url, name) = self.url_and_interface()?;
        self.flags.check()?;
        let mut key = self.take_auth_key()?;
        if self.only_log_in {
            return self.log_in(&name, url.as_deref(), key);
        }
        if is_running_node(&name) {
            let is_start = self.foreground || !self.address_range.is_empty();
            ensure!(
                !is_start,
                "{name}: the node is already running: stop it with `linerate down {name}`"
            );
            return self.log_in(&name, url.as_deref(), key);
        }
        let state = self.state_dir.clone().unwrap_or_else(|| state_folder(&name));
        let state = std::path::absolute(&state)?;
        ensure!(
            url.is_some() || state.join("agent").exists(),
            "{name}: the node has not joined a tailnet yet: the coordinator's URL is required"
        );
        if self.foreground {
            // This process becomes the node. A child process logs it in and prints the result.
            let mut again = Command::new("/proc/self/exe");
            again.args(env::args_os().skip(1)).arg("--only-log-in").stdin(Stdio::piped());
            let mut input = again
                .spawn()?
                .stdin
                .take()
                .context("the standard input of the child process is not a pipe")?;
            input.write_all(key.take().unwrap_or_default().as_bytes())?;
        }
        // In the background this returns in two processes. The process of the node drops the key.
        match self.start(&name, state, &mut key)? {
            Started::InBackground if self.foreground => Ok(()),
            Started::InBackground => self.log_in(&name, url.as_deref(), key),
            Started::Ended => Ok(()),
        }
    }

    /// Starts the node. Its process drops `key`.
    fn start(
        &self,
        name: &str,
        state: PathBuf,
        key: &mut Option<Zeroizing<String>>,
    ) -> anyhow::Result<Started> {
        let address_ranges = self.address_range.clone();
        let member = Some(member_process::Options { state, address_ranges });
        let name = name.to_owned();
        let (resources, sandbox) = (self.resource_args.resources()?, self.sandbox.is_on());
        let log_style = self.log.style(!self.foreground);
        let run: Run = if self.userspace.userspace {
            let conf = self.userspace.conf();
            let stack = StackChoice::InProcess;
            let options =
                proxy::Options { name, conf, resources, stack, sandbox, member, log_style };
            Box::new(|ready| proxy::run(options, ready))
        } else {
            let options =
                Options { name, member, resources, sandbox, log_style, ..Options::default() };
            Box::new(|ready| life::run(options, ready))
        };
        crate::start_with(self.log, self.foreground, None, |ready| {
            drop(key.take());
            run(ready)
        })
    }

    /// The coordinator and the interface.
    fn url_and_interface(&self) -> anyhow::Result<(Option<String>, String)> {
        let (urls, names): (Vec<&String>, Vec<&String>) =
            self.url_and_interface.iter().partition(|argument| argument.contains("://"));
        let (url, name) = match (&urls[..], &names[..]) {
            ([] | [_], [] | [_]) => (urls.first(), names.first()),
            ([_, ..], [..]) if urls.len() > 1 => bail!("a node has one coordinator"),
            _ => bail!("the URL of a coordinator has the form https://{}", names[0]),
        };
        if let Some(url) = url {
            ensure!(
                url.starts_with("https://") || url.starts_with("http://"),
                "{url}: the URL of a coordinator begins with https:// or http://"
            );
        }
        let name = name.map_or(INTERFACE, |name| name.as_str());
        Ok((url.map(|url| url.trim_end_matches('/').to_owned()), name.to_owned()))
    }

    /// Takes the key that admits this machine, and removes it from arguments and variables.
    fn take_auth_key(&mut self) -> anyhow::Result<Option<Zeroizing<String>>> {
        let variables = KEY_VARIABLES.map(|name| (name, take_variable(name)));
        let is_set = |key: &Zeroizing<String>| !key.trim().is_empty();
        let key = match self.auth_key.as_deref().map(|argument| argument.split_once(':')) {
            _ if self.only_log_in => {
                let input = io::stdin().as_fd().try_clone_to_owned()?;
                Some(read_key(File::from(input))?)
            }
            None => {
                let set =
                    variables.into_iter().map(|(name, key)| Some((name, key.filter(is_set)?)));
                let of_variable = |(name, key)| key_of_variable(name, key);
                set.flatten().next().map(of_variable).transpose()?
            }
            Some(Some(("file", path))) => Some(read_key_file("--auth-key", path)?),
            Some(Some(("env", name))) => {
                let key = take_variable(name).filter(is_set);
                let key = key.with_context(|| format!("--auth-key: {name}: no such variable"))?;
                Some(key_of_variable(name, key)?)
            }
            // `take_key_argument` took its value.
            Some(_) => self.key.take(),
        };
        Ok(key.map(|key| Zeroizing::new(key.trim().to_owned())).filter(|key| !key.is_empty()))
    }

    fn log_in(
        &self,
        name: &str,
        url: Option<&str>,
        key: Option<Zeroizing<String>>,
    ) -> anyhow::Result<()> {
        let client = Client::new(local_socket(name));
        let runtime = runtime()?;
        let end = Instant::now() + self.timeout;
        runtime.block_on(wait_until_answering(&client, end))?;
        let mut prefs = self.flags.masked(&runtime, &client)?;
        prefs["WantRunningSet"] = json!(true);
        prefs["WantRunning"] = json!(true);
        if let Some(url) = url {
            prefs["ControlURLSet"] = json!(true);
            prefs["ControlURL"] = json!(url);
        }
        runtime.block_on(async {
            let mut notifications = client.watch(INITIAL_STATE).await?;
            client.patch("prefs", &prefs).await?;
            let (mut start, has_key) = (json!({}), key.is_some());
            if let Some(key) = key {
                start["AuthKey"] = json!(*key);
            }
            client.post("start", Some(&start)).await?;
            if self.force_reauth {
                client.post("login-interactive", None).await?;
            }
            let status = wait_until_connected(&client, &mut notifications, has_key, end).await?;
            println!("{name}: {}", connected(&status));
            Ok(())
        })
    }
}

/// The key in a variable, or in the file that the variable names.
fn key_of_variable(name: &str, value: Zeroizing<String>) -> anyhow::Result<Zeroizing<String>> {
    match value.trim().strip_prefix("file:") {
        Some(path) => read_key_file(name, path),
        None => Ok(value),
    }
}

/// Reads the key in a file that a flag or a variable names.
fn read_key_file(named_by: &str, path: &str) -> anyhow::Result<Zeroizing<String>> {
    let key = File::open(path).map_err(Into::into).and_then(read_key);
    let key = key.with_context(|| format!("{named_by}: {path}"))?;
    ensure!(!key.trim().is_empty(), "{named_by}: {path}: the file is empty");
    Ok(key)
}

/// Reads a key. Its memory is allocated once: a growing string would leave copies of the key behind.
fn read_key(from: impl io::Read) -> anyhow::Result<Zeroizing<String>> {
    let mut key = Zeroizing::new(String::with_capacity(MAX_KEY_LEN + 1));
    let read = from.take(MAX_KEY_LEN as u64 + 1).read_to_string(&mut key)?;
    ensure!(read <= MAX_KEY_LEN, "a key has at most {MAX_KEY_LEN} bytes");
    Ok(key)
}

/// Waits until a new node answers.
async fn wait_until_answering(client: &Client, end: Instant) -> anyhow::Result<()> {
    loop {
        match client.get("prefs").await {
            Err(ClientError::Absent(_)) if Instant::now() < end => sleep(START_POLL_INTERVAL).await,
            answer => return Ok(answer.map(drop)?),
        }
    }
}

/// Waits until the node is running, and the coordinator has answered or cannot be reached. Returns the
/// node's status.
async fn wait_until_connected(
    client: &Client,
    notifications: &mut Notifications,
    has_key: bool,
    mut end: Instant,
) -> anyhow::Result<Value> {
    // A key logs in without a page.
    let (mut page, mut has_requested_login, mut runs) = (String::new(), has_key, false);
    loop {
        if runs {
            let status = client.get("status?peers=false").await?;
            let is_settled = status["Self"]["Online"] == true || !problem(&status).is_empty();
            if is_settled || Instant::now() >= end {
                return Ok(status);
            }
        }
        let until = if runs { end.min(Instant::now() + STATUS_POLL_INTERVAL) } else { end };
        let notification = match timeout_at(until, notifications.next()).await {
            Ok(notification) => notification?.context("the node ended")?,
            Err(_) if runs => continue,
            Err(_) => bail!("not connected yet: {}", reason_not_connected(client).await),
        };
        if let Some(error) = notification["ErrMessage"].as_str().filter(|error| !error.is_empty()) {
            bail!("{error}");
        }
        if let Some(at) =
            notification["BrowseToURL"].as_str().filter(|at| !at.is_empty() && *at != page)
        {
            print_login_page(at);
            page = at.to_owned();
            // A login with a browser may take any time.
            end = Instant::now() + Duration::from_secs(365 * 24 * 3600);
        }
        let state = notification["State"].as_u64();
        runs = state.map_or(runs, |state| state == RUNNING);
        match state {
            Some(NEEDS_LOGIN) if !has_requested_login => {
                client.post("login-interactive", None).await?;
                has_requested_login = true;
            }
            Some(NEEDS_APPROVAL) => {
                eprintln!("This machine waits for an administrator's approval.");
            }
            _ => {}
        }
    }
}

/// The reason why the node is not connected, as reported by the node.
async fn reason_not_connected(client: &Client) -> String {
    let status = client.get("status?peers=false").await.unwrap_or_default();
    let health = health(&status);
    match status["BackendState"].as_str() {
        state if health.is_empty() => state.unwrap_or("the node reports no reason").to_owned(),
        _ => health,
    }
}

/// Prints the address of the login page, as text and as a QR code for a phone.
fn print_login_page(at: &str) {
    eprintln!("\nTo log in, visit:\n\n\t{at}\n");
    if let Ok(code) = QrCode::new(at) {
        eprintln!("{}", code.render::<Dense1x2>().quiet_zone(true).build());
    }
}

/// The problems of a node.
fn health(status: &Value) -> String {
    let health = status["Health"].as_array().into_iter().flatten();
    health.filter_map(Value::as_str).collect::<Vec<_>>().join("; ")
}

/// The reason why the coordinator is not connected; empty if it is connected.
fn problem(status: &Value) -> &str {
    status["CoordinatorProblem"].as_str().unwrap_or_default()
}

/// Describes how a running node is connected, with its addresses.
fn connected(status: &Value) -> String {
    let own = status["Self"]["TailscaleIPs"].as_array().into_iter().flatten();
    let addresses: String = own.filter_map(Value::as_str).map(|at| format!(", {at}")).collect();
    if status["Self"]["Online"] == true {
        return format!("connected{addresses}");
    }
    let health = health(status);
    let reasons = [problem(status), health.as_str(), "the coordinator has not answered yet"];
    let reason = reasons.into_iter().find(|reason| !reason.is_empty()).unwrap_or_default();
    format!("connected by the last map{addresses}: {reason}")
}
