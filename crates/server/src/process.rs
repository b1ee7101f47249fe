//! The process around the server: preparation before its threads start, notifications of the service
//! manager, and shutdown.
//!
//! ```text
//!   signals blocked ── files confined ── threads, sockets, store ── system calls confined ── ready
//!                                                     on signal: SIGHUP ── certificates
//!                                                                others ── shutdown
//! ```
//!
//! At shutdown, the last-seen times of connected nodes are stored. Acknowledged changes are on disk
//! already. A thread reads the signals. tokio's `signal` feature is not used: cargo would enable it
//! for `linerate` as well, and its sandbox does not allow those system calls.

pub(crate) mod context;
pub(crate) mod files;
pub(crate) mod log;
pub(crate) mod sandbox;

use std::{
    fs,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use anyhow::Context;
use futures_util::future::join_all;
use sys::{
    atomic_file::set_private_umask,
    process::{Service, Signal, Signals, harden, raise_file_limit},
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    time::timeout,
};

use self::{context::ProcessContext, sandbox::Sandbox};
use crate::{
    configuration::Configuration, serve::serve_in, tenants::Tenants,
    tls::certificates::Certificates,
};

/// Maximum wait for the store's last writes.
const LAST_WRITES: Duration = Duration::from_secs(3);

/// Serves until the process ends.
///
/// # Errors
/// The server cannot start.
pub(crate) fn run(configuration: Configuration, is_confined: bool) -> anyhow::Result<()> {
    let signals = Signals::block().context("signals")?;
    harden().context("hardening the process")?;
    set_private_umask();
    if let Err(error) = raise_file_limit() {
        tracing::warn!("raising the limit of open files: {error}");
    }
    let service = Service::from_environment().unwrap_or_else(|error| {
        tracing::warn!("the service manager cannot be reached: {error}");
        None
    });
    let service = service.map(Arc::new);
    let whole = configuration.clone().complete();
    whole.check()?;
    files::make_folder(&whole.state_dir)?;
    if let Some(folder) = whole.socket.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let sandbox = is_confined.then(|| Sandbox::of(&whole));
    match &sandbox {
        Some(sandbox) => sandbox.confine_files()?,
        None => tracing::info!("sandbox: disabled"),
    }
    let relaying = runtime()?;
    let context = ProcessContext::new(sandbox, service.clone(), relaying.handle().clone());
    let certificates = context.certificates();
    let serving = runtime()?;
    let end = Shutdown { tenants: context.tenants(), threads: serving.handle().clone() };
    let thread = thread::Builder::new().name("signals".into());
    let handle_signals = move || handle_signals(&signals, &certificates, service.as_deref(), &end);
    thread.spawn(handle_signals).context("threads")?;
    serving.block_on(serve_in(configuration, context))
}

/// Creates a runtime with one thread per core.
///
/// # Errors
/// The threads cannot be created.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().context("threads")
}

/// Work at shutdown.
struct Shutdown {
    tenants: Arc<OnceLock<Arc<Tenants>>>,
    threads: Handle,
}

impl Shutdown {
    /// Stores the current time as last-seen time of connected nodes.
    fn run(&self) {
        let Some(tenants) = self.tenants.get() else { return };
        let all = tenants.all().iter().filter_map(|slot| slot.tenant());
        let written = all.map(|tenant| tenant.network.run(coordinator::State::record_all_seen));
        let written = async { timeout(LAST_WRITES, join_all(written)).await };
        match self.threads.block_on(written) {
            Ok(written) => written.into_iter().filter_map(Result::err).for_each(|error| {
                tracing::warn!("last-seen times were not written: {error:#}");
            }),
            Err(_) => tracing::warn!("last-seen times were not written in time"),
        }
    }
}

fn handle_signals(
    signals: &Signals,
    certificates: &OnceLock<Arc<Certificates>>,
    service: Option<&Service>,
    end: &Shutdown,
) {
    loop {
        match signals.wait() {
            Ok(Signal::HangUp) => match certificates.get() {
                Some(certificates) => certificates.look_again(),
                None => tracing::info!("SIGHUP: no certificate to reload"),
            },
            Ok(Signal::Terminate | Signal::Interrupt) => {
                if let Some(service) = service {
                    service.stopping();
                }
                end.run();
                std::process::exit(0);
            }
            Err(error) => return tracing::error!("signals: {error}"),
        }
    }
}
