//! No secret outlives its use: /proc/PID/mem is searched for pieces of each secret, from the parser's
//! texts to the keys of ended sessions.
//!
//! ```text
//!   left                                                     right
//!   wg0  10.9.0.1/24               . . . . tunnel . . . .    this test (`noise.rs`)
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

/// Twice as many handshakes as there are SIMD lanes.
const CROWD: usize = 16;

/// A linerate configured by wg(8), and its peer.
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

    /// A tunnel to a peer with the greater public key, so that linerate offers the key of an
    /// exchange.
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
        // All values are queried, as by a monitor.
        left.run("wg show wg0 dump");
    }

    /// Peers for simultaneous handshakes.
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

    fn expect_found(&self, secrets: &Secrets, what: &str) {
        self.world.expect_found(self.daemon.pid(), secrets, what);
    }

    fn expect_erased(&self, secrets: &Secrets) {
        self.world.expect_erased("linerate", self.daemon.pid(), secrets);
    }
}

#[test]
fn texts_of_keys_are_erased_after_reading_and_printing() {
    let tunnel = Tunnel::new();
    tunnel.expect_found(&tunnel.own.secrets(), "the private key that is in use");
    tunnel.expect_erased(&tunnel.own.texts().with_texts("the preshared key", &tunnel.psk));
}

#[test]
fn a_replaced_private_key_is_erased_with_its_sessions() {
    let tunnel = Tunnel::new();
    let session = tunnel.world.answer(&tunnel.noise);
    tunnel.expect_found(&session.keys(), "the keys of the session");
    let new = Private::new();
    let key = tunnel.world.left.write("new.key", &new.base64());
    // Without a further query, which might reuse the same stack.
    tunnel.world.left.run(format!("wg set wg0 private-key {key}"));
    tunnel.expect_found(&new.secrets(), "the new private key");
    let product = Secrets::new().with("static-static", &tunnel.noise.static_static());
    let old = tunnel.own.secrets().and(&tunnel.own.texts()).and(&product);
    tunnel.expect_erased(&old.and(&session.keys()).and(&session.secrets));
}

#[test]
fn secrets_of_a_handshake_are_erased_after_it_and_its_keys_after_two_more() {
    let tunnel = Tunnel::new();
    let request = tunnel.world.answer(&tunnel.noise);
    tunnel.expect_erased(&request.secrets);
    let initiated = tunnel.world.meet(&tunnel.noise);
    tunnel.expect_erased(&initiated.secrets);
    tunnel.expect_found(&request.keys(), "the keys of the previous session");
    tunnel.expect_found(&initiated.keys(), "the keys of the session");
    for _ in 0..2 {
        let next = tunnel.world.meet(&tunnel.noise);
        tunnel.expect_erased(&next.secrets);
    }
    tunnel.expect_erased(&request.keys().and(&initiated.keys()));
}

/// With several waiting handshakes, other code computes the products together.
#[test]
fn secrets_of_simultaneous_handshakes_are_erased_after_them() {
    let tunnel = Tunnel::new();
    let crowd = tunnel.add_crowd();
    let sessions = tunnel.world.initiate_at_once(&tunnel.daemon, &crowd);
    let products = crowd.iter().fold(Secrets::new(), |all, noise| {
        all.with("the product of both static keys", &noise.static_static())
    });
    tunnel.expect_found(&products, "the stored product of each peer");
    for session in &sessions {
        tunnel.expect_found(&session.keys(), "the keys of the session");
    }
    let of_handshakes =
        sessions.iter().fold(Secrets::new(), |all, session| all.and(&session.secrets));
    tunnel.expect_erased(&of_handshakes);
    for noise in &crowd {
        tunnel.world.left.run(format!("wg set wg0 peer {} remove", base64(&noise.public())));
    }
    tunnel.expect_erased(&sessions.iter().fold(products, |all, session| all.and(&session.keys())));
}

#[test]
fn a_post_quantum_secret_exists_once_and_is_erased_with_the_peer() {
    let tunnel = Tunnel::that_offers();
    let (world, noise) = (&tunnel.world, &tunnel.noise);
    let mut session = world.meet(noise);
    let agreed = exchange::agree(world, noise, &tunnel.psk, &mut session);
    let secret = Secrets::new().with("the agreed secret", &agreed.secret);
    let combined = Secrets::new().with("the combined preshared key", &agreed.combined);
    tunnel.expect_found(&secret, "the agreed secret");
    let next = exchange::switch(world, noise, &agreed, &mut session);
    tunnel.expect_found(&next.keys(), "the keys of the session");
    tunnel.expect_erased(&combined.and(&next.secrets));
    let peer = base64(&noise.public());
    tunnel.world.left.run(format!("wg set wg0 peer {peer} remove"));
    tunnel.expect_erased(&tunnel.of_peer().and(&secret).and(&session.keys()).and(&next.keys()));
}

#[test]
fn a_peer_that_was_removed_leaves_no_secret() {
    let tunnel = Tunnel::new();
    let sessions = [tunnel.world.answer(&tunnel.noise), tunnel.world.meet(&tunnel.noise)];
    tunnel.expect_found(&tunnel.of_peer(), "the secrets of the peer");
    let peer = base64(&tunnel.noise.public());
    tunnel.world.left.run(format!("wg set wg0 peer {peer} remove"));
    let secrets = sessions
        .iter()
        .fold(tunnel.of_peer(), |all, session| all.and(&session.keys()).and(&session.secrets));
    tunnel.expect_erased(&secrets);
}

/// A configuration file and its secrets.
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
fn up_retains_no_text_of_the_file_and_its_guardian_no_key() {
    let (world, conf) = (World::new(), Conf::new());
    let path = conf.write(&world, "SaveConfig = true\nPostDown = touch /run/rig/down; sleep 60");
    let program = Implementation::Linerate.path();
    // With four or more cores, other threads seal and deliver.
    let line = format!("{} up --cores 4 {path} </dev/null >/run/rig/log 2>&1", program.display());
    world.left.run(line);
    let session = world.answer(&conf.noise);
    let pid = world.left.daemon_of(INTERFACE).expect("it runs");
    let all = processes(&world.left);
    let process = |name: &str| all.iter().find(|(other, _)| other == name).expect(name).1;
    let [guardian, helper] = ["linerate-guard", "linerate-helper"].map(process);
    assert_eq!(all.len(), 3, "{all:?}");
    world.expect_found(pid, &conf.own.secrets(), "the private key that is in use");
    world.expect_found(pid, &session.keys(), "the keys of the session");
    world.expect_erased("linerate up", pid, &conf.texts().and(&session.secrets));
    world.expect_erased("the guardian", guardian, &conf.all().and(&session.keys()));
    world.expect_erased("the helper", helper, &conf.all().and(&session.keys()));

    let new = Conf { own: Private::new(), noise: conf.noise, psk: conf.psk };
    let key = world.left.write("new.key", &new.own.base64());
    world.left.run(format!("wg set wg0 private-key {key}"));
    let old = conf.own.secrets().and(&conf.own.texts()).and(&session.keys());
    world.expect_erased("linerate up", pid, &old);

    world.left.run(format!("kill -TERM {pid}"));
    eventually("PostDown runs", PATIENCE, || world.left.has("/run/rig/down"));
    let saved = world.left.read(&path);
    assert!(saved.contains(&base64(&conf.psk)), "SaveConfig wrote nothing: {saved}");
    world.expect_erased("the guardian", guardian, &new.all());
    world.left.run(format!("kill -KILL {guardian}"));
}

#[test]
fn a_proxys_process_in_the_namespace_does_not_have_the_key() {
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
    world.expect_found(pid, &conf.own.secrets(), "the private key that is in use");
    world.expect_erased("the proxy", pid, &conf.texts().and(&session.secrets));
    world.expect_erased("its child", child, &conf.all());
}

#[test]
fn with_crypto_library_our_cryptography_is_not_called() {
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

    // If the processor supports our code, the first handshake calls it.
    let mut tunnel = begin("");
    let (initiation, _) = tunnel.noise.initiate(1);
    tunnel.world.send(&initiation);
    eventually("a trap ends it", PATIENCE, || !tunnel.daemon.is_running());
}

#[test]
fn an_auth_key_is_only_in_the_agent() {
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
            // The text of this test must not contain pieces of the key.
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
                    assert!(found.is_empty(), "case {number}{foreground}: {who}: {found:#?}");
                    assert!(!who.contains(&key), "{who}");
                }
            }
            assert_eq!(holders, 1, "case {number}{foreground}: the agent lacks the key");
            host.attempt(format!("{} down {INTERFACE}", program.display()));
        }
    }
}
