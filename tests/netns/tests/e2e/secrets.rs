//! No secret outlives its use: /proc/PID/mem is searched for the pieces of each, from the parser's
//! texts to the keys of sessions that are over.
//!
//! ```text
//!   left                                                     right
//!   wg0  10.9.0.1/24               . . . . tunnel . . . .    this test, by hand (`noise.rs`)
//!   eth0 10.1.0.1/24               -------- cable --------   eth0 10.1.0.2:51820
//! ```

mod exchange;
mod noise;
mod own_code;
mod scan;
mod world;

use self::noise::Noise;
use self::scan::{Secrets, processes};
use self::world::{PATIENCE, Private, World, random};
use netns::{Daemon, Host, INTERFACE, Implementation, Program, base64, eventually};

/// Twice as many handshakes as there are lanes.
const CROWD: usize = 16;

/// A linerate that wg(8) configures, and its peer.
struct Tunnel {
    world: World,
    daemon: Daemon,
    own: Private,
    noise: Noise,
    psk: [u8; 32],
}

impl Tunnel {
    fn new() -> Self {
        let (own, psk) = (Private::new(), random());
        let noise = Noise::new(random(), own.public(), psk);
        Self::with(own, noise, psk)
    }

    /// One whose peer has the greater public key, so that linerate offers a key in an exchange.
    fn that_offers() -> Self {
        loop {
            let (own, psk) = (Private::new(), random());
            let noise = Noise::new(random(), own.public(), psk);
            if own.public() < noise.public() {
                return Self::with(own, noise, psk);
            }
        }
    }

    fn with(own: Private, noise: Noise, psk: [u8; 32]) -> Self {
        Self::with_arguments("", own, noise, psk)
    }

    fn with_arguments(arguments: &str, own: Private, noise: Noise, psk: [u8; 32]) -> Self {
        let world = World::new();
        let mut program = Program::from(Implementation::Linerate);
        if !arguments.is_empty() {
            let script = format!("#!/bin/sh\nexec {} {arguments} \"$@\"\n", program.path.display());
            program.path = world.left.write_program("linerate-with-arguments", &script).into();
        }
        let daemon = Daemon::start(&world.left, program, INTERFACE);
        let key = world.left.write("own.key", &own.base64());
        world.left.run(format!(
            "wg set wg0 listen-port 51820 private-key {key}; \
             ip address add 10.9.0.1/24 dev wg0; ip link set wg0 up"
        ));
        let tunnel = Self { world, daemon, own, noise, psk };
        tunnel.add_peer();
        tunnel
    }

    fn add_peer(&self) {
        let left = &self.world.left;
        let psk = left.write("psk", &base64(&self.psk));
        let peer = base64(&self.noise.public());
        left.run(format!(
            "wg set wg0 peer {peer} preshared-key {psk} endpoint 10.1.0.2:51820 \
             allowed-ips 10.9.0.2/32"
        ));
        // It is asked for all that it knows, as by a monitor.
        left.run("wg show wg0 dump");
    }

    /// Peers for handshakes that come at once.
    fn add_crowd(&self) -> Vec<Noise> {
        let own = self.own.public();
        let crowd: Vec<_> = (0..CROWD).map(|_| Noise::new(random(), own, [0; 32])).collect();
        let add = |noise: &Noise| format!("peer {} allowed-ips ''", base64(&noise.public()));
        let peers: Vec<_> = crowd.iter().map(add).collect();
        self.world.left.run(format!("wg set wg0 {}", peers.join(" ")));
        crowd
    }

    fn of_peer(&self) -> Secrets {
        Secrets::new()
            .with("the preshared key", &self.psk)
            .with_texts("the preshared key", &self.psk)
            .with("the product of both static keys", &self.noise.static_static())
    }

    fn has(&self, secrets: &Secrets, what: &str) {
        self.world.has(self.daemon.pid(), secrets, what);
    }

    fn forgets(&self, secrets: &Secrets) {
        self.world.forgets("linerate", self.daemon.pid(), secrets);
    }
}

#[test]
fn texts_of_keys_are_gone_once_they_are_read_or_shown() {
    let tunnel = Tunnel::new();
    tunnel.has(&tunnel.own.secrets(), "the private key that is in use");
    tunnel.forgets(&tunnel.own.texts().with_texts("the preshared key", &tunnel.psk));
}

#[test]
fn a_private_key_that_was_replaced_is_gone_with_its_sessions() {
    let tunnel = Tunnel::new();
    let session = tunnel.world.answer(&tunnel.noise);
    tunnel.has(&session.keys(), "the keys of the session");
    let new = Private::new();
    let key = tunnel.world.left.write("new.key", &new.base64());
    // Nothing is asked for behind it: another client might get the same stack.
    tunnel.world.left.run(format!("wg set wg0 private-key {key}"));
    tunnel.has(&new.secrets(), "the new private key");
    let product = Secrets::new().with("static-static", &tunnel.noise.static_static());
    let old = tunnel.own.secrets().and(&tunnel.own.texts()).and(&product);
    tunnel.forgets(&old.and(&session.keys()).and(&session.secrets));
}

#[test]
fn the_secrets_of_a_handshake_are_gone_when_it_is_over_and_its_keys_after_two_more() {
    let tunnel = Tunnel::new();
    let asked = tunnel.world.answer(&tunnel.noise);
    tunnel.forgets(&asked.secrets);
    let initiated = tunnel.world.meet(&tunnel.noise);
    tunnel.forgets(&initiated.secrets);
    tunnel.has(&asked.keys(), "the keys of the previous session");
    tunnel.has(&initiated.keys(), "the keys of the session");
    for _ in 0..2 {
        let next = tunnel.world.meet(&tunnel.noise);
        tunnel.forgets(&next.secrets);
    }
    tunnel.forgets(&asked.keys().and(&initiated.keys()));
}

/// Of several that wait the products are computed together, by other code.
#[test]
fn the_secrets_of_handshakes_that_come_at_once_are_gone_when_they_are_over() {
    let tunnel = Tunnel::new();
    let crowd = tunnel.add_crowd();
    let sessions = tunnel.world.initiate_at_once(&tunnel.daemon, &crowd);
    let products = crowd.iter().fold(Secrets::new(), |all, noise| {
        all.with("the product of both static keys", &noise.static_static())
    });
    tunnel.has(&products, "what is kept of each peer");
    for session in &sessions {
        tunnel.has(&session.keys(), "the keys of the session");
    }
    let of_handshakes =
        sessions.iter().fold(Secrets::new(), |all, session| all.and(&session.secrets));
    tunnel.forgets(&of_handshakes);
    for noise in &crowd {
        tunnel.world.left.run(format!("wg set wg0 peer {} remove", base64(&noise.public())));
    }
    tunnel.forgets(&sessions.iter().fold(products, |all, session| all.and(&session.keys())));
}

#[test]
fn a_secret_against_quantum_computers_is_in_one_place_and_gone_with_the_peer() {
    let tunnel = Tunnel::that_offers();
    let (world, noise) = (&tunnel.world, &tunnel.noise);
    let mut session = world.meet(noise);
    let agreed = exchange::agree(world, noise, &tunnel.psk, &mut session);
    let secret = Secrets::new().with("the agreed secret", &agreed.secret);
    let combined = Secrets::new().with("the combined preshared key", &agreed.combined);
    tunnel.has(&secret, "the agreed secret");
    let next = exchange::switch(world, noise, &agreed, &mut session);
    tunnel.has(&next.keys(), "the keys of the session");
    tunnel.forgets(&combined.and(&next.secrets));
    let peer = base64(&noise.public());
    tunnel.world.left.run(format!("wg set wg0 peer {peer} remove"));
    tunnel.forgets(&tunnel.of_peer().and(&secret).and(&session.keys()).and(&next.keys()));
}

#[test]
fn a_peer_that_was_removed_leaves_no_secret() {
    let tunnel = Tunnel::new();
    let sessions = [tunnel.world.answer(&tunnel.noise), tunnel.world.meet(&tunnel.noise)];
    tunnel.has(&tunnel.of_peer(), "the secrets of the peer");
    let peer = base64(&tunnel.noise.public());
    tunnel.world.left.run(format!("wg set wg0 peer {peer} remove"));
    let secrets = sessions
        .iter()
        .fold(tunnel.of_peer(), |all, session| all.and(&session.keys()).and(&session.secrets));
    tunnel.forgets(&secrets);
}

/// A configuration file and the secrets in it.
struct Conf {
    own: Private,
    noise: Noise,
    psk: [u8; 32],
}

impl Conf {
    fn new() -> Self {
        let (own, psk) = (Private::new(), random());
        let noise = Noise::new(random(), own.public(), psk);
        Self { own, noise, psk }
    }

    fn write(&self, world: &World, lines: &str) -> String {
        let text = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 51820\nAddress = 10.9.0.1/24\n{lines}\n\
             [Peer]\nPublicKey = {}\nPresharedKey = {}\nEndpoint = 10.1.0.2:51820\n\
             AllowedIPs = 10.9.0.2/32\n",
            self.own.base64(),
            base64(&self.noise.public()),
            base64(&self.psk),
        );
        let path = world.left.write("wg0.conf", &text);
        world.left.run(format!("chmod 700 /run/rig; chmod 600 {path}"));
        path
    }

    fn texts(&self) -> Secrets {
        self.own.texts().with_texts("the preshared key", &self.psk)
    }

    fn all(&self) -> Secrets {
        self.texts().and(&self.own.secrets()).with("the preshared key", &self.psk)
    }
}

#[test]
fn up_keeps_no_text_of_the_file_and_its_guardian_no_key() {
    let (world, conf) = (World::new(), Conf::new());
    let path = conf.write(&world, "SaveConfig = true\nPostDown = touch /run/rig/down; sleep 60");
    let program = Implementation::Linerate.path();
    // From four cores on other threads seal and deliver.
    let line = format!("{} up --cores 4 {path} </dev/null >/run/rig/log 2>&1", program.display());
    world.left.run(line);
    let session = world.answer(&conf.noise);
    let pid = world.left.daemon_of(INTERFACE).expect("it runs");
    let all = processes(&world.left);
    let process = |name: &str| all.iter().find(|(other, _)| other == name).expect(name).1;
    let [guardian, helper] = ["linerate-guard", "linerate-helper"].map(process);
    assert_eq!(all.len(), 3, "{all:?}");
    world.has(pid, &conf.own.secrets(), "the private key that is in use");
    world.has(pid, &session.keys(), "the keys of the session");
    world.forgets("linerate up", pid, &conf.texts().and(&session.secrets));
    world.forgets("the guardian", guardian, &conf.all().and(&session.keys()));
    world.forgets("the helper", helper, &conf.all().and(&session.keys()));

    let new = Conf { own: Private::new(), noise: conf.noise, psk: conf.psk };
    let key = world.left.write("new.key", &new.own.base64());
    world.left.run(format!("wg set wg0 private-key {key}"));
    let old = conf.own.secrets().and(&conf.own.texts()).and(&session.keys());
    world.forgets("linerate up", pid, &old);

    world.left.run(format!("kill -TERM {pid}"));
    eventually("PostDown runs", PATIENCE, || world.left.has("/run/rig/down"));
    let saved = world.left.read(&path);
    assert!(saved.contains(&base64(&conf.psk)), "SaveConfig wrote nothing: {saved}");
    world.forgets("the guardian", guardian, &new.all());
    world.left.run(format!("kill -KILL {guardian}"));
}

#[test]
fn a_proxys_process_in_the_namespace_has_no_key() {
    let (world, conf) = (World::new(), Conf::new());
    let path = conf.write(&world, "Socks5 = 127.0.0.1:1080");
    let program = Implementation::Linerate.path();
    let line = format!(
        "{} proxy --stack namespace {path} </dev/null >/run/rig/log 2>&1 &",
        program.display()
    );
    world.left.run(line);
    eventually("the proxy listens", PATIENCE, || world.left.listens(1080));
    let session = world.initiate(&conf.noise);
    let all = processes(&world.left);
    let [(_, pid), (_, child)] = all[..] else { panic!("a proxy and its child: {all:?}") };
    world.has(pid, &conf.own.secrets(), "the private key that is in use");
    world.forgets("the proxy", pid, &conf.texts().and(&session.secrets));
    world.forgets("its child", child, &conf.all());
}

#[test]
fn with_crypto_library_nothing_of_our_own_cryptography_is_called() {
    let begin = |arguments: &str| {
        let (own, psk) = (Private::new(), random());
        let noise = Noise::new(random(), own.public(), psk);
        let tunnel = Tunnel::with_arguments(arguments, own, noise, psk);
        own_code::trap(&tunnel.world.left, tunnel.daemon.pid());
        tunnel
    };
    let tunnel = begin("--crypto library");
    tunnel.world.meet(&tunnel.noise);
    tunnel.world.initiate_at_once(&tunnel.daemon, &tunnel.add_crowd());
    tunnel.world.answer(&tunnel.noise);

    // On a processor that our code is for, the first handshake calls it.
    let mut tunnel = begin("");
    let (initiation, _) = tunnel.noise.initiate(1);
    tunnel.world.send(&initiation);
    eventually("a trap ends it", PATIENCE, || !tunnel.daemon.is_running());
}

#[test]
fn a_key_to_join_with_is_in_no_process_but_the_agent() {
    let program = Implementation::Linerate.path();
    let join = format!("{} join --timeout 1s http://10.99.0.1 {INTERFACE}", program.display());
    let ways: [fn(&str, &str) -> String; 4] = [
        |join, key| format!("LINERATE_AUTH_KEY={key} {join}"),
        |join, key| format!("MY_KEY={key} {join} --auth-key env:MY_KEY"),
        |join, key| format!("{join} --auth-key file:<(echo {key})"),
        |join, key| format!("{join} --auth-key {key}"),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        for foreground in ["", " -f >/dev/null 2>&1 &"] {
            let (host, bytes) = (Host::new("alone"), random());
            // No piece of it is in the text of this test.
            let key = base64(&bytes);
            host.attempt(way(&join, &key) + foreground);
            // Empty once the process has ended.
            let command = |pid| {
                let path = host.outside(format!("/proc/{pid}/cmdline"));
                std::fs::read_to_string(path).unwrap_or_default()
            };
            let is_agent = |pid| command(pid).starts_with("linerate-agent");
            let secrets = Secrets::new().with_texts("the key", &bytes);
            eventually("the agent has the key", PATIENCE, || {
                let has_key = |pid| !secrets.found_in(&host, pid).is_empty();
                processes(&host).iter().any(|&(_, pid)| is_agent(pid) && has_key(pid))
            });
            eventually("the command that joins has ended", PATIENCE, || {
                !processes(&host).iter().any(|&(_, pid)| command(pid).contains("--only-log-in"))
            });
            let mut holders = 0;
            for (_, pid) in processes(&host) {
                let found = secrets.found_in(&host, pid);
                if is_agent(pid) {
                    holders += usize::from(!found.is_empty());
                } else {
                    let who = command(pid);
                    assert!(found.is_empty(), "way {number}{foreground}: {who}: {found:#?}");
                    assert!(!who.contains(&key), "{who}");
                }
            }
            assert_eq!(holders, 1, "way {number}{foreground}: the agent has none");
            host.attempt(format!("{} down {INTERFACE}", program.display()));
        }
    }
}
