//! Pursues one goal at a time until it is reached.

use std::{pin::pin, sync::Arc, time::Duration};

use mesh::{
    backoff::Backoff,
    dialing::Candidate,
    registration::{Login, Registration, Step},
};
use tailnet::{
    keys::NodePublic,
    ts2021::requests::{Announcement, MapPosition, MapRequest, RegisterRequest},
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep},
};

use super::{
    Command, Event, Settings,
    connection::{Connection, Transport},
    error::{ControlError, printable},
    map::{self, Stream},
    ping::{self, Answer},
    tka::{self, TkaRequests},
};

/// The age of a stream at which its end no longer increases the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// The shortest interval between two requests that poll for the user's login.
const FOLLOWUP_INTERVAL: Duration = Duration::from_secs(1);
/// The most answers to pings in the queue.
const MAX_PING_ANSWERS: usize = 16;

#[derive(Debug)]
enum Goal {
    Idle,
    /// Register a key.
    Join(Registration),
    /// Follow the map. The login registers the node again if the coordinator deleted it. Its auth
    /// key is removed after the first map.
    Stay(Login),
    /// Log a key out.
    Leave(NodePublic),
}

/// The present state of this node, after the first update.
pub(super) type NodeInfo = watch::Receiver<Option<Arc<Announcement>>>;

/// The channels of commands other than goals.
struct Inbox<'a> {
    node_info: NodeInfo,
    answers: &'a mut mpsc::Receiver<Answer>,
    tka_requests: &'a mut TkaRequests,
}

/// A session with a coordinator.
pub(super) struct Session<C> {
    settings: Settings<C>,
    events: mpsc::Sender<Event>,
    goal: Goal,
    failures: Backoff,
    refusals: Backoff,
    plan: Vec<Candidate>,
    /// The position in the map stream of the goal's key.
    position: Option<MapPosition>,
    /// The memory for pending maps.
    room: Arc<Semaphore>,
}

impl<C: Transport> Session<C> {
    pub(super) fn new(settings: Settings<C>, events: mpsc::Sender<Event>) -> Self {
        Self {
            settings,
            events,
            goal: Goal::Idle,
            failures: Backoff::connections(),
            refusals: Backoff::refusals(),
            plan: Vec::new(),
            position: None,
            room: map::room(),
        }
    }

    /// Runs commands until their channel is closed.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let (set_node_info, node_info) = watch::channel(None);
        let (answers, mut pending_answers) = mpsc::channel(MAX_PING_ANSWERS);
        let (send_tka_request, mut tka_requests) = watch::channel(None);
        loop {
            let command = {
                let mut pursued = pin!(self.pursue(Inbox {
                    node_info: node_info.clone(),
                    answers: &mut pending_answers,
                    tka_requests: &mut tka_requests,
                }));
                loop {
                    tokio::select! {
                        command = commands.recv() => match command {
                            Some(Command::Update(announced)) => {
                                set_node_info.send_replace(Some(Arc::from(announced)));
                            }
                            Some(Command::Answer { url, over_noise, body }) => {
                                let answer = Answer { url, over_noise, body: Some(body) };
                                // Answers beyond the limit would be late.
                                let _ = answers.try_send(answer);
                            }
                            Some(Command::TkaRequest(tka_request)) => drop(send_tka_request.send_replace(Some(tka_request))),
                            command => break command,
                        },
                        () = &mut pursued => return,
                    }
                }
            };
            match command {
                Some(Command::Login(login)) => self.set_goal(Goal::Join(Registration::new(login))),
                Some(Command::Resume(login)) => self.set_goal(Goal::Stay(login)),
                Some(Command::Logout(node_key)) => self.set_goal(Goal::Leave(node_key)),
                Some(Command::Reconnect) => {}
                _ => return,
            }
            self.failures.reset();
            self.refusals.reset();
        }
    }

    /// Sets another goal. The position belonged to the previous one.
    fn set_goal(&mut self, goal: Goal) {
        (self.goal, self.position) = (goal, None);
    }

    /// Pursues the goal. Returns when the channel of events is closed.
    async fn pursue(&mut self, mut inbox: Inbox<'_>) {
        let has_node_info = inbox.node_info.wait_for(Option::is_some).await.is_ok();
        while has_node_info && !matches!(self.goal, Goal::Idle) && !self.events.is_closed() {
            let begun = Instant::now();
            let Err(why) = self.run_connection(&mut inbox).await else { continue };
            let retry_in = match why {
                ControlError::Busy(wanted) => self.failures.handle_busy(wanted, random()),
                _ if begun.elapsed() >= STABLE_AFTER => self.failures.handle_loss(random()),
                _ => self.failures.handle_failure(random()),
            };
            self.emit(Event::Disconnected { why, retry_in }).await;
            sleep(retry_in).await;
        }
        self.events.closed().await;
    }

    /// Works over one connection until the goal is idle.
    async fn run_connection(&mut self, inbox: &mut Inbox<'_>) -> Result<(), ControlError> {
        let (connection, key) = Connection::open(&self.settings, &self.plan).await?;
        if self.settings.server_key.is_zero() {
            self.settings.server_key = key;
            self.emit(Event::ServerKey(key)).await;
        }
        loop {
            match &self.goal {
                Goal::Idle => return Ok(()),
                Goal::Join(_) => self.join(&connection, &mut inbox.node_info).await?,
                Goal::Stay(_) => {
                    let ended = self.stay(&connection, inbox).await;
                    if matches!(ended, Err(ControlError::UnknownNode))
                        && let Goal::Stay(login) = &self.goal
                    {
                        self.set_goal(Goal::Join(Registration::new(login.clone())));
                        continue;
                    }
                    return ended;
                }
                &Goal::Leave(node_key) => {
                    self.leave(&connection, node_key, &mut inbox.node_info).await?;
                }
            }
        }
    }

    /// Sends one registration request and handles its answer.
    async fn join(
        &mut self,
        connection: &Connection,
        node_info: &mut NodeInfo,
    ) -> Result<(), ControlError> {
        let Goal::Join(registration) = &mut self.goal else { return Ok(()) };
        let announced = current(node_info);
        let request = registration.request(&announced.hostinfo);
        let waits_for_user = registration.awaits_login();
        let response =
            connection.register(&registration.node_key(), &request, waits_for_user).await;
        if let Err(ControlError::Status(..)) = response
            && waits_for_user
        {
            registration.clear_url();
        }
        match registration.handle_response(response?) {
            Step::Visit(url) => {
                if let Some(url) = url {
                    self.emit(Event::AuthUrl(url)).await;
                }
                if waits_for_user {
                    sleep(FOLLOWUP_INTERVAL).await;
                }
            }
            // A command can cancel each await, so the goal changes only after the event is sent.
            Step::Registered(registered) => {
                let login = registration.again();
                self.emit(Event::Registered(registered)).await;
                self.goal = Goal::Stay(login);
                self.refusals.reset();
            }
            Step::NewNodeKey(signature) => {
                self.emit(Event::NeedsNewNodeKey { signature }).await;
                self.goal = Goal::Idle;
            }
            Step::Refused(why) => {
                let retry_in = self.refusals.handle_failure(random());
                registration.clear_url();
                self.emit(Event::Refused { why: printable(why.as_bytes()), retry_in }).await;
                sleep(retry_in).await;
            }
        }
        Ok(())
    }

    /// Follows the map, sends updates and answers pings, until one of them fails.
    async fn stay(
        &mut self,
        connection: &Connection,
        inbox: &mut Inbox<'_>,
    ) -> Result<(), ControlError> {
        let Goal::Stay(login) = &mut self.goal else { return Ok(()) };
        let node_key = login.node_key;
        let Inbox { node_info, answers, tka_requests } = inbox;
        let announced = current(node_info);
        let (ping_sender, mut ping_receiver) = mpsc::channel(1);
        let mut stream = Stream {
            connection,
            events: &self.events,
            room: &self.room,
            pings: ping_sender,
            plan: &mut self.plan,
            position: &mut self.position,
            auth_key: &mut login.auth_key,
            last_ping: String::new(),
        };
        let Settings { dialer, url, .. } = &self.settings;
        let pings = ping::Pings { connection, transport: dialer, url };
        tokio::select! {
            ended = stream.follow(node_key, &announced) => ended,
            ended = send_updates(connection, node_key, node_info) => ended,
            () = pings.answer(&mut ping_receiver, answers) => Ok(()),
            () = tka::forward_all(connection, node_key, tka_requests, &self.events) => Ok(()),
        }
    }

    async fn leave(
        &mut self,
        connection: &Connection,
        node_key: NodePublic,
        node_info: &mut NodeInfo,
    ) -> Result<(), ControlError> {
        let announced = current(node_info);
        let request = RegisterRequest::logout(node_key, &announced.hostinfo);
        match connection.register(&node_key, &request, false).await {
            // The node does not exist, so it is logged out.
            Ok(_) | Err(ControlError::UnknownNode) => {}
            Err(ControlError::Status(_, status, _)) if (400..500).contains(&status) => {}
            Err(error) => return Err(error),
        }
        self.emit(Event::LoggedOut).await;
        self.goal = Goal::Idle;
        Ok(())
    }

    async fn emit(&self, event: Event) {
        // `pursue` checks whether the channel is closed.
        let _ = self.events.send(event).await;
    }
}

/// The present state of the node, which `pursue` waits for.
fn current(node_info: &mut NodeInfo) -> Arc<Announcement> {
    node_info.borrow_and_update().clone().unwrap_or_default()
}

/// Sends the present state of the node to the coordinator, and again after each change. Returns if
/// the connection ends.
async fn send_updates(
    connection: &Connection,
    node_key: NodePublic,
    node_info: &mut NodeInfo,
) -> Result<(), ControlError> {
    let mut failures = Backoff::refusals();
    loop {
        let announced = current(node_info);
        let request = MapRequest::update(node_key, &announced);
        match connection.update(node_key, &request).await {
            Ok(()) => {
                failures.reset();
                if node_info.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            // The stream may still work, and peers learn about this node in other ways.
            Err(
                ControlError::Status(..)
                | ControlError::Busy(_)
                | ControlError::BadResponse(..)
                | ControlError::NoAnswer(..),
            ) => {
                sleep(failures.handle_failure(random())).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A random number. A constant would make all clients of a coordinator return at the same time.
pub fn random() -> u32 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u32::from_ne_bytes(bytes),
        Err(_) => u32::MAX / 2,
    }
}
