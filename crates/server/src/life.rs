//! The life of the process around the server: what comes before its threads, what its service manager
//! is told, and its end.
//!
//! ```text
//!   signals blocked ── files confined ── threads, sockets, store ── calls confined ── ready
//!                                                     a signal: SIGHUP ── certificates
//!                                                               others ── the end
//! ```
//!
//! At a signal the times are stored at which nodes were last seen, and the process ends. Acknowledged changes are
//! on the disk already. A thread reads the signals. tokio's feature for signals is not used: cargo would enable it
//! for `linerate` as well, and the sandbox of `linerate` does not allow its system calls.

use std::{
    fs,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use anyhow::Context;
use futures_util::future::{join_all, try_join_all};
use sys::{
    atomic_file::set_private_umask,
    process::{Service, Signal, Signals, harden, raise_file_limit},
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    time::{sleep, timeout},
};

use crate::{
    certificates::Certificates, configuration::Configuration, files, networks::Networks,
    sandbox::Sandbox, serve::serve_in,
};

/// The longest wait for the store's last writes.
const LAST_WRITES: Duration = Duration::from_secs(3);

/// What the process was started with.
#[derive(Default)]
pub struct Surroundings {
    sandbox: Option<Sandbox>,
    service: Option<Arc<Service>>,
    certificates: Arc<OnceLock<Arc<Certificates>>>,
    networks: Arc<OnceLock<Arc<Networks>>>,
    /// The threads of the data plane, if they are others than those of the control plane.
    data_plane: Option<Handle>,
}

/// Serves until the process ends.
///
/// # Errors
/// It cannot begin.
pub fn run(configuration: Configuration, is_confined: bool) -> anyhow::Result<()> {
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
        None => tracing::info!("no sandbox: it is off"),
    }
    let certificates = Arc::default();
    let relaying = runtime()?;
    let data_plane = Some(relaying.handle().clone());
    let networks = Arc::default();
    let surroundings = Surroundings { sandbox, service, certificates, networks, data_plane };
    let (service, certificates) = (surroundings.service.clone(), surroundings.certificates.clone());
    let serving = runtime()?;
    let end = End { networks: surroundings.networks.clone(), threads: serving.handle().clone() };
    let thread = thread::Builder::new().name("signals".into());
    let heed = move || heed(&signals, &certificates, service.as_deref(), &end);
    thread.spawn(heed).context("threads")?;
    serving.block_on(serve_in(configuration, surroundings))
}

/// As many threads as the machine has cores.
///
/// # Errors
/// The system starts none.
pub fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().context("threads")
}

impl Surroundings {
    /// The threads that relay datagrams, answer STUN, and wait for all sockets of clients. The process
    /// has some for this alone: a flood of handshakes, or a change of a large network, delays no datagram.
    pub fn data_plane(&self) -> Handle {
        self.data_plane.clone().unwrap_or_else(Handle::current)
    }

    /// The server listens everywhere, and its stores are open, or are waited for.
    ///
    /// # Errors
    /// The kernel refuses the sandbox.
    pub fn begun(
        self,
        networks: &Arc<Networks>,
        certificates: Option<Arc<Certificates>>,
    ) -> anyhow::Result<()> {
        if let Some(certificates) = certificates {
            // It was empty: this is called once.
            let _ = self.certificates.set(certificates);
        }
        let _ = self.networks.set(Arc::clone(networks));
        if let Some(sandbox) = self.sandbox {
            sandbox.confine_calls()?;
        }
        if let Some(service) = self.service {
            service.ready();
            if let Some(limit) = service.watchdog() {
                tokio::spawn(show_life(service, Arc::clone(networks), limit));
            }
        }
        Ok(())
    }
}

/// The last work before the process ends.
struct End {
    networks: Arc<OnceLock<Arc<Networks>>>,
    threads: Handle,
}

impl End {
    /// Stores that the connected nodes were seen now.
    fn come(&self) {
        let Some(networks) = self.networks.get() else { return };
        let all = networks.all().iter().filter_map(|place| place.server());
        let written = all.map(|server| server.network.run(coordinator::State::record_all_seen));
        let written = async { timeout(LAST_WRITES, join_all(written)).await };
        match self.threads.block_on(written) {
            Ok(written) => written.into_iter().filter_map(Result::err).for_each(|error| {
                tracing::warn!("when nodes were last seen is not written: {error:#}");
            }),
            Err(_) => tracing::warn!("when nodes were last seen is not written in time"),
        }
    }
}

fn heed(
    signals: &Signals,
    certificates: &OnceLock<Arc<Certificates>>,
    service: Option<&Service>,
    end: &End,
) {
    loop {
        match signals.wait() {
            Ok(Signal::HangUp) => match certificates.get() {
                Some(certificates) => certificates.look_again(),
                None => tracing::info!("SIGHUP: there is no certificate to be read again"),
            },
            Ok(Signal::Terminate | Signal::Interrupt) => {
                if let Some(service) = service {
                    service.stopping();
                }
                end.come();
                std::process::exit(0);
            }
            Err(error) => return tracing::error!("signals: {error}"),
        }
    }
}

/// Tells the service manager that commands are answered, for as long as they are: by every network that
/// has begun. A database that is away is no reason for one not to answer.
async fn show_life(service: Arc<Service>, networks: Arc<Networks>, limit: Duration) {
    loop {
        sleep(limit / 3).await;
        let all = networks.all().iter().filter_map(|place| place.server());
        let answers = all.map(|server| server.network.run(|_, _| ()));
        if let Ok(Ok(_)) = timeout(limit / 3, try_join_all(answers)).await {
            service.alive();
        }
    }
}
