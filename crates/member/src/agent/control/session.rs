//! One goal at a time, tried until it is reached.

use std::{pin::pin, sync::Arc, time::Duration};

use tailnet::{
    control::{
        backoff::Backoff,
        dial::Candidate,
        messages::{Announced, MapPosition, MapRequest, RegisterRequest},
        register::{Login, Registration, Step},
    },
    keys::NodePublic,
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep},
};

use super::{
    Command, Event, Settings,
    connection::{Carrier, Connection},
    lock::{self, Questions},
    map::{self, Stream},
    ping::{self, Answer},
    trouble::{Trouble, shown},
};

/// How long a stream must have stood for the next failure to count as the first.
const STEADY: Duration = Duration::from_secs(10);
/// How long at least between two questions whether a person has logged in.
const FOLLOWUP_PAUSE: Duration = Duration::from_secs(1);
/// How many answers to pings may wait to be sent.
const ANSWERS: usize = 16;

/// What is tried.
#[derive(Debug)]
enum Goal {
    /// Nothing.
    Idle,
    /// To register a key.
    Join(Registration),
    /// To follow the map. The login registers the node again if the coordinator deleted it, and loses its auth
    /// key after the first map.
    Stay(Login),
    /// To give up a key.
    Leave(NodePublic),
}

/// What is known of this node, once something is.
pub(super) type Known = watch::Receiver<Option<Arc<Announced>>>;

/// What the commands say beside the goal.
struct Inbox<'a> {
    known: Known,
    answers: &'a mut mpsc::Receiver<Answer>,
    questions: &'a mut Questions,
}

/// A member's side of a coordinator.
pub(super) struct Session<C> {
    settings: Settings<C>,
    events: mpsc::Sender<Event>,
    goal: Goal,
    failures: Backoff,
    refusals: Backoff,
    plan: Vec<Candidate>,
    /// How far the map of the goal's key was followed.
    position: Option<MapPosition>,
    /// Room for maps that wait among the events.
    room: Arc<Semaphore>,
}

impl<C: Carrier> Session<C> {
    /// Idle.
    pub fn new(settings: Settings<C>, events: mpsc::Sender<Event>) -> Self {
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

    /// Does what the commands say until they end.
    pub async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let (announce, known) = watch::channel(None);
        let (answers, mut to_answer) = mpsc::channel(ANSWERS);
        let (ask, mut questions) = watch::channel(None);
        loop {
            let command = {
                let mut pursued = pin!(self.pursue(Inbox {
                    known: known.clone(),
                    answers: &mut to_answer,
                    questions: &mut questions,
                }));
                loop {
                    tokio::select! {
                        command = commands.recv() => match command {
                            Some(Command::Update(announced)) => {
                                announce.send_replace(Some(Arc::from(announced)));
                            }
                            Some(Command::Answer { url, over_noise, body }) => {
                                let answer = Answer { url, over_noise, body: Some(body) };
                                // More than may wait are late anyway.
                                let _ = answers.try_send(answer);
                            }
                            Some(Command::Ask(question)) => drop(ask.send_replace(Some(question))),
                            command => break command,
                        },
                        () = &mut pursued => return,
                    }
                }
            };
            match command {
                Some(Command::Login(login)) => self.aim(Goal::Join(Registration::new(login))),
                Some(Command::Resume(login)) => self.aim(Goal::Stay(login)),
                Some(Command::Logout(node_key)) => self.aim(Goal::Leave(node_key)),
                Some(Command::Reconnect) => {}
                _ => return,
            }
            self.failures.reset();
            self.refusals.reset();
        }
    }

    /// Another goal; what is known of the map was told to the one before.
    fn aim(&mut self, goal: Goal) {
        (self.goal, self.position) = (goal, None);
    }

    /// Pursues the goal. Returns when nobody listens.
    async fn pursue(&mut self, mut inbox: Inbox<'_>) {
        let is_known = inbox.known.wait_for(Option::is_some).await.is_ok();
        while is_known && !matches!(self.goal, Goal::Idle) && !self.events.is_closed() {
            let begun = Instant::now();
            let Err(why) = self.connected(&mut inbox).await else { continue };
            let retry_in = match why {
                Trouble::Later(wanted) => self.failures.handle_busy(wanted, random()),
                _ if begun.elapsed() >= STEADY => self.failures.handle_loss(random()),
                _ => self.failures.handle_failure(random()),
            };
            self.tell(Event::Disconnected { why, retry_in }).await;
            sleep(retry_in).await;
        }
        self.events.closed().await;
    }

    /// Works over one connection, until the goal is idle.
    async fn connected(&mut self, inbox: &mut Inbox<'_>) -> Result<(), Trouble> {
        let (connection, key) = Connection::open(&self.settings, &self.plan).await?;
        if self.settings.server_key.is_zero() {
            self.settings.server_key = key;
            self.tell(Event::ServerKey(key)).await;
        }
        loop {
            match &self.goal {
                Goal::Idle => return Ok(()),
                Goal::Join(_) => self.join(&connection, &mut inbox.known).await?,
                Goal::Stay(_) => {
                    let stayed = self.stay(&connection, inbox).await;
                    if let Err(Trouble::UnknownNode) = stayed
                        && let Goal::Stay(login) = &self.goal
                    {
                        self.aim(Goal::Join(Registration::new(login.clone())));
                        continue;
                    }
                    return stayed;
                }
                &Goal::Leave(node_key) => {
                    self.leave(&connection, node_key, &mut inbox.known).await?;
                }
            }
        }
    }

    /// Sends one request to register, and does what the answer says.
    async fn join(&mut self, connection: &Connection, known: &mut Known) -> Result<(), Trouble> {
        let Goal::Join(registration) = &mut self.goal else { return Ok(()) };
        let announced = current(known);
        let request = registration.request(&announced.hostinfo);
        let waits = registration.awaits_person();
        let asked = connection.register(&registration.node_key(), &request, waits).await;
        if let Err(Trouble::Status(..)) = asked
            && waits
        {
            registration.forget_url();
        }
        match registration.handle_response(asked?) {
            Step::Visit(url) => {
                if let Some(url) = url {
                    self.tell(Event::AuthUrl(url)).await;
                }
                if waits {
                    sleep(FOLLOWUP_PAUSE).await;
                }
            }
            // A command may end each wait: what is not told yet is not done yet.
            Step::Registered(registered) => {
                let login = registration.again();
                self.tell(Event::Registered(registered)).await;
                self.goal = Goal::Stay(login);
                self.refusals.reset();
            }
            Step::NewNodeKey(signature) => {
                self.tell(Event::NeedsNewNodeKey { signature }).await;
                self.goal = Goal::Idle;
            }
            Step::Refused(why) => {
                let retry_in = self.refusals.handle_failure(random());
                registration.forget_url();
                self.tell(Event::Refused { why: shown(why.as_bytes()), retry_in }).await;
                sleep(retry_in).await;
            }
        }
        Ok(())
    }

    /// Follows the map, tells of changes of this node and answers pings, until one of them fails.
    async fn stay(
        &mut self,
        connection: &Connection,
        inbox: &mut Inbox<'_>,
    ) -> Result<(), Trouble> {
        let Goal::Stay(login) = &mut self.goal else { return Ok(()) };
        let node_key = login.node_key;
        let Inbox { known, answers, questions } = inbox;
        let announced = current(known);
        let (ask, mut asked) = mpsc::channel(1);
        let mut stream = Stream {
            connection,
            events: &self.events,
            room: &self.room,
            pings: ask,
            plan: &mut self.plan,
            position: &mut self.position,
            auth_key: &mut login.auth_key,
            last_ping: String::new(),
        };
        let Settings { dialer, url, .. } = &self.settings;
        let pings = ping::Pings { connection, carrier: dialer, url };
        tokio::select! {
            ended = stream.follow(node_key, &announced) => ended,
            ended = tell_changes(connection, node_key, known) => ended,
            () = pings.answer(&mut asked, answers) => Ok(()),
            () = lock::ask_all(connection, node_key, questions, &self.events) => Ok(()),
        }
    }

    async fn leave(
        &mut self,
        connection: &Connection,
        node_key: NodePublic,
        known: &mut Known,
    ) -> Result<(), Trouble> {
        let announced = current(known);
        let request = RegisterRequest::logout(node_key, &announced.hostinfo);
        match connection.register(&node_key, &request, false).await {
            // A node that the coordinator does not have is as good as gone.
            Ok(_) | Err(Trouble::UnknownNode) => {}
            Err(Trouble::Status(_, status, _)) if (400..500).contains(&status) => {}
            Err(trouble) => return Err(trouble),
        }
        self.tell(Event::LoggedOut).await;
        self.goal = Goal::Idle;
        Ok(())
    }

    async fn tell(&self, event: Event) {
        // Whether somebody listens is looked at where it matters: in `pursue`.
        let _ = self.events.send(event).await;
    }
}

/// What is known now: `pursue` begins when something is.
fn current(known: &mut Known) -> Arc<Announced> {
    known.borrow_and_update().clone().unwrap_or_default()
}

/// Tells the coordinator what this node is, now and at each change. Ends when nothing changes any
/// more, or the connection does.
async fn tell_changes(
    connection: &Connection,
    node_key: NodePublic,
    known: &mut Known,
) -> Result<(), Trouble> {
    let mut failures = Backoff::refusals();
    loop {
        let announced = current(known);
        let request = MapRequest::update(node_key, &announced);
        match connection.update(node_key, &request).await {
            Ok(()) => {
                failures.reset();
                if known.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            // The stream may stand all the same: peers still learn of this node by other ways.
            Err(
                Trouble::Status(..)
                | Trouble::Later(_)
                | Trouble::BadAnswer(..)
                | Trouble::Silent(..),
            ) => {
                sleep(failures.handle_failure(random())).await;
            }
            Err(trouble) => return Err(trouble),
        }
    }
}

/// A number by chance; without randomness, all members of a coordinator come back at once.
pub fn random() -> u32 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u32::from_ne_bytes(bytes),
        Err(_) => u32::MAX / 2,
    }
}
