//! Measures TCP between the stack and the kernel's TCP, through two engines in this process, in
//! Gbit/s. It needs the permission to create network namespaces:
//!
//! ```text
//!   cargo run --release -p linerate-netstack --example throughput \
//!       [-- bbr|cubic [SECONDS [STREAMS [ROUNDS]]]]
//! ```
#![expect(clippy::unwrap_used, reason = "an example that cannot go on ends")]

#[path = "../tests/kernel/rig.rs"]
mod rig;

use std::{
    env,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use netstack::CongestionControl;
use nix::sys::resource::{UsageWho, getrusage};
use rig::{KERNEL, Rig, STACK};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, sleep},
};

/// Bytes of one read or write, on either side.
const BUFFER: usize = 128 * 1024;
/// Time in which the windows grow.
const WARM_UP: Duration = Duration::from_millis(500);

/// Counts bytes, and whether to continue.
#[derive(Default)]
struct Meter {
    bytes: AtomicU64,
    stop: AtomicBool,
}

fn main() {
    let mut arguments = env::args().skip(1);
    let control = match arguments.next().as_deref() {
        None | Some("bbr") => CongestionControl::Bbr,
        Some("cubic") => CongestionControl::Cubic,
        Some(other) => panic!("{other} is neither bbr nor cubic"),
    };
    let mut arguments = arguments.map(|text| text.parse().unwrap());
    let seconds = Duration::from_secs(arguments.next().unwrap_or(3));
    let streams = arguments.next().unwrap_or(1) as usize;
    let rounds = arguments.next().unwrap_or(1);
    let rig = Rig::new(64 << 20, control).expect("network namespaces and a TUN device");
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
    let mut port = 5000;
    for _ in 0..rounds {
        for (gso, gro) in [(true, true), (false, true), (true, false), (false, false)] {
            rig.stack.set_offloads(gso, gro);
            port += 2;
            let out = runtime.block_on(out_of_stack(&rig, port, streams, seconds));
            let into = runtime.block_on(into_stack(&rig, port + 1, streams, seconds));
            let name = |on| if on { "on " } else { "off" };
            println!(
                "gso {} gro {}   out {:5.2} ({:4.1} CPU s/GB)   in {:5.2} ({:4.1})   {:3} MB",
                name(gso),
                name(gro),
                out.0,
                out.1,
                into.0,
                into.1,
                getrusage(UsageWho::RUSAGE_SELF).unwrap().max_rss() / 1024,
            );
        }
    }
}

/// Returns Gbit/s, and CPU seconds per gigabyte of all threads.
async fn measure(meter: &Meter, duration: Duration) -> (f64, f64) {
    sleep(WARM_UP).await;
    let (bytes, begin, cpu) = (meter.bytes.load(Ordering::Relaxed), Instant::now(), cpu());
    sleep(duration).await;
    let carried = (meter.bytes.load(Ordering::Relaxed) - bytes) as f64;
    let cpu = self::cpu() - cpu;
    let rate = carried * 8e-9 / begin.elapsed().as_secs_f64();
    meter.stop.store(true, Ordering::Relaxed);
    (rate, cpu / (carried / 1e9))
}

fn cpu() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

fn at(address: [&str; 2], port: u16) -> SocketAddr {
    SocketAddr::new(address[0].parse().unwrap(), port)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    thread::Builder::new().name(name.into()).spawn(body).unwrap();
}

async fn out_of_stack(rig: &Rig, port: u16, streams: usize, duration: Duration) -> (f64, f64) {
    let meter = Arc::new(Meter::default());
    let listener = TcpListener::bind(at(KERNEL, port)).unwrap();
    let readers = meter.clone();
    spawn("kernel accepts", move || {
        for stream in listener.incoming().take(streams) {
            let (mut stream, meter) = (stream.unwrap(), readers.clone());
            spawn("kernel reads", move || {
                let mut buffer = vec![0; BUFFER];
                while let Ok(len @ 1..) = stream.read(&mut buffer) {
                    meter.bytes.fetch_add(len as u64, Ordering::Relaxed);
                }
            });
        }
    });
    for _ in 0..streams {
        let mut stream = rig.stack.connect(at(KERNEL, port)).await.unwrap();
        let meter = meter.clone();
        tokio::spawn(async move {
            let buffer = vec![7; BUFFER];
            while !meter.stop.load(Ordering::Relaxed) {
                stream.write_all(&buffer).await.unwrap();
            }
        });
    }
    measure(&meter, duration).await
}

async fn into_stack(rig: &Rig, port: u16, streams: usize, duration: Duration) -> (f64, f64) {
    let meter = Arc::new(Meter::default());
    let listener = rig.stack.listen(at(STACK, port)).unwrap();
    for _ in 0..streams {
        let writer = meter.clone();
        spawn("kernel writes", move || {
            let mut stream = TcpStream::connect(at(STACK, port)).unwrap();
            let buffer = vec![7; BUFFER];
            while !writer.stop.load(Ordering::Relaxed) {
                if stream.write_all(&buffer).is_err() {
                    break;
                }
            }
        });
        let (mut stream, _) = listener.accept().await.unwrap();
        let meter = meter.clone();
        tokio::spawn(async move {
            let mut buffer = vec![0; BUFFER];
            while let Ok(len @ 1..) = stream.read(&mut buffer).await {
                meter.bytes.fetch_add(len as u64, Ordering::Relaxed);
            }
        });
    }
    measure(&meter, duration).await
}
