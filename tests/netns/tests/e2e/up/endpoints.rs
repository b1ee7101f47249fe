//! Endpoints by name, before and after a name server answers.

use std::time::Duration;

use netns::{Implementation, Stopwatch, conf, eventually, serve_names};

use crate::up::{PATIENCE, World, world};

const LOG: &str = "/run/rig/up.log";

/// A file with an endpoint by name, on a host with a name server that does not answer.
fn named(world: &World) -> String {
    world.left.run("echo nameserver 127.0.0.1 >/etc/resolv.conf; ip link set lo up");
    let peer = "Endpoint = vpn.example:51820\nAllowedIPs = 10.9.0.0/24";
    conf(&world.left, &world.key, &world.right.key, "", peer)
}

/// Starts `linerate up` with this environment. Its process ID and its exit status are written to
/// files.
fn start(world: &World, environment: &str, file: &str) {
    let program = Implementation::Linerate.path();
    world.left.write("up.log", "");
    world.left.write_program(
        "start",
        &format!(
            "#!/bin/sh\nenv {environment} {} up {file} </dev/null >{LOG} 2>&1 &\n\
             echo $! >/run/rig/up.pid\nwait $!\necho $? >/run/rig/up.status\n",
            program.display()
        ),
    );
    world
        .left
        .run("rm -f /run/rig/up.status; setsid /run/rig/bin/start </dev/null >/dev/null 2>&1 &");
}

fn waits(world: &World) {
    let line = "Endpoint = vpn.example:51820: Temporary failure in name resolution; next try in";
    eventually("it waits for a name server", PATIENCE, || world.left.read(LOG).contains(line));
}

fn status(world: &World) -> String {
    let path = "/run/rig/up.status";
    eventually("up ends", PATIENCE, || world.left.has(path) && !world.left.read(path).is_empty());
    world.left.read(path).trim().to_owned()
}

#[test]
fn a_name_is_retried_until_a_server_answers() {
    let world = world();
    let file = named(&world);
    start(&world, "", &file);
    waits(&world);
    serve_names(&world.left, &["127.0.0.1"], "--host-record=vpn.example,10.1.0.2");
    assert_eq!(status(&world), "0", "{}", world.left.read(LOG));
    world.reaches(&["10.9.0.2"]);
}

#[test]
fn a_name_that_does_not_exist_fails_at_once() {
    let world = world();
    let file = named(&world);
    serve_names(&world.left, &["127.0.0.1"], "--host-record=another.example,10.1.0.2");
    let watch = Stopwatch::start();
    start(&world, "WG_ENDPOINT_RESOLUTION_RETRIES=infinity", &file);
    assert_eq!(status(&world), "1");
    assert!(watch.elapsed() < Duration::from_secs(10));
    let log = world.left.read(LOG);
    assert!(log.contains("Endpoint = vpn.example:51820: ") && !log.contains("next try"), "{log}");
}

#[test]
fn the_environment_sets_the_number_of_tries() {
    let world = world();
    let file = named(&world);
    start(&world, "WG_ENDPOINT_RESOLUTION_RETRIES=1", &file);
    assert_eq!(status(&world), "1");
    assert_eq!(world.left.read(LOG).matches("next try").count(), 1, "{}", world.left.read(LOG));
    start(&world, "WG_ENDPOINT_RESOLUTION_RETRIES=many", &file);
    assert_eq!(status(&world), "1");
    let wanted = "WG_ENDPOINT_RESOLUTION_RETRIES: \"many\" is neither a number nor infinity";
    assert!(world.left.read(LOG).contains(wanted), "{}", world.left.read(LOG));
}

#[test]
fn the_end_of_the_command_ends_the_wait() {
    let world = world();
    let file = named(&world);
    start(&world, "WG_ENDPOINT_RESOLUTION_RETRIES=infinity", &file);
    waits(&world);
    world.left.run("kill -TERM $(cat /run/rig/up.pid); : >/etc/resolv.conf");
    world.is_as_before();
}
