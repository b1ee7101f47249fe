//! A coordinator in the test's process, and a network that leads to it.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex},
};

use tokio::{
    io::{copy_bidirectional, duplex},
    sync::Notify,
};

use super::super::{
    connection::Transport,
    dial::{Stream, Target},
    error::ControlError,
};

pub(crate) use doubles::coordinator::{
    Behaviour, MapStream, MemberRequest, framed, public_key as key,
};

/// The coordinator and its network.
pub(crate) struct Coordinator {
    double: doubles::coordinator::Coordinator,
    network: Network,
}

/// A transport that leads to the coordinator.
#[derive(Clone)]
pub(crate) struct Network(Arc<Shared>);

struct Shared {
    acceptor: doubles::coordinator::Acceptor,
    targets: Mutex<Vec<Target>>,
    cut: Notify,
}

impl Coordinator {
    pub(crate) fn new(behaviour: Behaviour) -> Self {
        let double = doubles::coordinator::Coordinator::new(behaviour);
        let (targets, cut) = (Mutex::default(), Notify::new());
        let network = Network(Arc::new(Shared { acceptor: double.acceptor(), targets, cut }));
        Self { double, network }
    }

    pub(crate) fn network(&self) -> Network {
        self.network.clone()
    }

    /// Interrupts all present connections silently.
    pub(crate) fn cut(&self) {
        self.network.0.cut.notify_waiters();
    }

    /// The targets of connections since the last call.
    pub(crate) fn targets(&self) -> Vec<Target> {
        std::mem::take(&mut *self.network.0.targets.lock().unwrap())
    }
}

impl Deref for Coordinator {
    type Target = doubles::coordinator::Coordinator;

    fn deref(&self) -> &Self::Target {
        &self.double
    }
}

impl DerefMut for Coordinator {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.double
    }
}

impl Transport for Network {
    async fn open(&self, target: Target) -> Result<Box<dyn Stream>, ControlError> {
        self.0.targets.lock().unwrap().push(target);
        if self.0.acceptor.behaviour() == Behaviour::NeverConnects {
            std::future::pending::<()>().await;
        }
        let (ours, mut near) = duplex(16 << 10);
        let (mut far, theirs) = duplex(16 << 10);
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move {
            tokio::select! {
                _ = copy_bidirectional(&mut near, &mut far) => {}
                () = shared.cut.notified() => std::future::pending().await,
            }
        });
        let acceptor = self.0.acceptor.clone();
        tokio::spawn(async move { acceptor.serve(theirs).await });
        Ok(Box::new(ours))
    }
}
