//! The generators: this program inside the hosts, by subcommands that only the bench calls.

use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use linerate_bench::connections;
use linerate_bench::crowd::Crowd;
use linerate_bench::flood::{self, Flood};
use linerate_bench::lifetime::end_with_stdin;
use linerate_bench::link::{self, Shape};
use linerate_bench::proxy_streams;
use linerate_bench::quic::{self, Direction, Protection};
use linerate_bench::relay_load::RelayLoad;
use linerate_bench::swarm::{Group, Swarm};
use wg::PublicKey;

type Done = Result<(), Box<dyn Error>>;

/// Runs a generator if the first argument names one.
pub(crate) fn generate(words: &[String]) -> Option<Done> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Some(match words.as_slice() {
        ["sink", port] => sink(port),
        ["link", shape, ends @ ..] => relay(shape, ends),
        ["flood", to, seconds, size, options @ ..] => send(to, seconds, size, options),
        ["quic-server", at, protection] => serve(at, protection),
        ["quic-client", to, way, seconds, protection] => call(to, way, seconds, protection),
        ["answer", at] => answer(at),
        ["call", to, seconds] => connect(to, seconds),
        ["drain", at] => drain(at),
        ["pour", to, proxy, streams, seconds] => stream(to, proxy, streams, seconds),
        ["swarm", url, authority, at_once, seconds, groups @ ..] => {
            join(url, authority, [at_once, seconds], groups)
        }
        ["relayed", host, port, authority, pairs, size, seconds, network @ ..] => {
            pass(host, port, authority, [pairs, size, seconds], network)
        }
        ["greet", count, hub, at] => greet(count, hub, at),
        ["storm", count, hub, at, a_second] => storm(count, hub, at, a_second),
        _ => return None,
    })
}

fn sink(port: &str) -> Done {
    end_with_stdin()?;
    Ok(flood::sink(port.parse()?)?)
}

fn send(to: &str, seconds: &str, size: &str, options: &[&str]) -> Done {
    let (segment, options) = match options {
        ["--segment", options @ ..] => (true, options),
        _ => (false, options),
    };
    let rate = match options {
        ["--rate", rate] => Some(rate.parse()?),
        _ => None,
    };
    let (to, seconds, size) = (to.parse()?, seconds.parse()?, size.parse()?);
    let flood = Flood { to, seconds, size, rate, segment };
    println!("{}", flood.send()?);
    Ok(())
}

fn relay(shape: &str, ends: &[&str]) -> Done {
    let ends: Result<Vec<SocketAddr>, _> = ends.iter().map(|end| end.parse()).collect();
    let ends = <[SocketAddr; 4]>::try_from(ends?).map_err(|_| "a link has four addresses")?;
    let [left, left_daemon, right, right_daemon] = ends;
    link::relay(Shape::parse(shape)?, [(left, left_daemon), (right, right_daemon)])
}

fn serve(at: &str, protection: &str) -> Done {
    end_with_stdin()?;
    quic::serve(at.parse()?, Protection::named(protection))
}

fn call(to: &str, way: &str, seconds: &str, protection: &str) -> Done {
    let way = if way == "up" { Direction::Up } else { Direction::Down };
    let protection = Protection::named(protection);
    println!("{}", quic::call(to.parse()?, way, seconds.parse()?, protection)?);
    Ok(())
}

fn answer(at: &str) -> Done {
    end_with_stdin()?;
    Ok(connections::serve(at.parse()?)?)
}

fn connect(to: &str, seconds: &str) -> Done {
    println!("{}", connections::call(to.parse()?, seconds.parse()?)?);
    Ok(())
}

fn greet(count: &str, hub: &str, at: &str) -> Done {
    let hub = PublicKey::from_base64(hub).map_err(|_| "not a key")?;
    for greeted in Crowd::new(count.parse()?).shake_hands(hub, at.parse()?)? {
        println!("{greeted}");
    }
    Ok(())
}

fn storm(count: &str, hub: &str, at: &str, a_second: &str) -> Done {
    let hub = PublicKey::from_base64(hub).map_err(|_| "not a key")?;
    println!("{}", Crowd::new(count.parse()?).storm(hub, at.parse()?, a_second.parse()?)?);
    Ok(())
}

fn join(url: &str, authority: &str, numbers: [&str; 2], groups: &[&str]) -> Done {
    let [at_once, seconds] = numbers;
    let groups: Option<Vec<Group>> = groups.iter().map(|word| Group::parse(word)).collect();
    let swarm = Swarm {
        url: url.parse()?,
        authority: fs::read(authority)?,
        groups: groups.ok_or("a group is KEY=COUNT=VISIBLE_PEERS")?,
        at_once: at_once.parse()?,
        limit: Duration::from_secs(seconds.parse()?),
    };
    swarm.run()
}

fn pass(host: &str, port: &str, authority: &str, numbers: [&str; 3], network: &[&str]) -> Done {
    let [pairs, size, seconds] = numbers;
    let network = match network {
        [url, auth_key] => Some((url.parse()?, auth_key.to_string())),
        _ => None,
    };
    let relayed = RelayLoad {
        host: host.to_owned(),
        port: port.parse()?,
        authority: fs::read(authority)?,
        network,
        pairs: pairs.parse()?,
        size: size.parse()?,
        time: Duration::from_secs_f64(seconds.parse()?),
    };
    relayed.run()
}

fn drain(at: &str) -> Done {
    Ok(proxy_streams::drain(at.parse()?)?)
}

fn stream(to: &str, proxy: &str, streams: &str, seconds: &str) -> Done {
    Ok(proxy_streams::send_streams(
        to.parse()?,
        proxy.parse()?,
        streams.parse()?,
        seconds.parse()?,
    )?)
}
