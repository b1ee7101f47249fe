//! What the process provides to the server: the sandbox, the service manager, and the runtime of the
//! data plane.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::try_join_all;
use sys::process::Service;
use tokio::{
    runtime::Handle,
    time::{sleep, timeout},
};

use super::sandbox::Sandbox;
use crate::{tenants::Tenants, tls::certificates::Certificates};

/// What the process provides to the server.
pub struct ProcessContext {
    sandbox: Option<Sandbox>,
    service: Option<Arc<Service>>,
    certificates: Arc<OnceLock<Arc<Certificates>>>,
    tenants: Arc<OnceLock<Arc<Tenants>>>,
    data_plane: Handle,
}

impl ProcessContext {
    /// A context with a sandbox, a service manager, and a runtime for the data plane.
    pub fn new(
        sandbox: Option<Sandbox>,
        service: Option<Arc<Service>>,
        data_plane: Handle,
    ) -> Self {
        let (certificates, tenants) = (Arc::default(), Arc::default());
        Self { sandbox, service, certificates, tenants, data_plane }
    }

    /// The certificates, which are set when the server has started.
    pub fn certificates(&self) -> Arc<OnceLock<Arc<Certificates>>> {
        Arc::clone(&self.certificates)
    }

    /// The tenants, which are set when the server has started.
    pub fn tenants(&self) -> Arc<OnceLock<Arc<Tenants>>> {
        Arc::clone(&self.tenants)
    }

    /// Runtime for relaying datagrams, STUN, and waiting for all client sockets. It is separate,
    /// so that a flood of handshakes or a change of a large network does not delay datagrams.
    pub fn data_plane(&self) -> Handle {
        self.data_plane.clone()
    }

    /// Called when all listeners are open, and the stores are open or being opened.
    ///
    /// # Errors
    /// The kernel refuses the sandbox.
    pub fn started(
        self,
        tenants: &Arc<Tenants>,
        certificates: Option<Arc<Certificates>>,
    ) -> anyhow::Result<()> {
        if let Some(certificates) = certificates {
            // It was empty, because this is called once.
            let _ = self.certificates.set(certificates);
        }
        let _ = self.tenants.set(Arc::clone(tenants));
        if let Some(sandbox) = self.sandbox {
            sandbox.confine_calls()?;
        }
        if let Some(service) = self.service {
            service.ready();
            if let Some(limit) = service.watchdog() {
                tokio::spawn(feed_watchdog(service, Arc::clone(tenants), limit));
            }
        }
        Ok(())
    }
}

/// Feeds the service manager's watchdog while every started network answers commands. A network
/// whose database is unavailable still answers.
async fn feed_watchdog(service: Arc<Service>, tenants: Arc<Tenants>, limit: Duration) {
    loop {
        sleep(limit / 3).await;
        let all = tenants.all().iter().filter_map(|slot| slot.tenant());
        let answers = all.map(|tenant| tenant.network.run(|_, _| ()));
        if let Ok(Ok(_)) = timeout(limit / 3, try_join_all(answers)).await {
            service.alive();
        }
    }
}
