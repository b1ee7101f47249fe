use std::{fs, net::Shutdown, sync::mpsc::channel, thread};

use wg::PrivateKey;

use super::*;

const FILE: &str = "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n\
                    Address = 10.0.0.1/24\nDNS = 10.0.0.1, corp.example\nMTU = 1390\n\
                    ListenPort = 5\nSaveConfig = true\nFwMark = 0x100\nFwMask = 0xff00\n\
                    PreUp = true\nPostUp = echo # %i\nPreDown = ip rule del = 1 || true\n\
                    PreDown = echo %i\nPostDown = echo PreDown\nIpForward = true\n";

fn interface() -> Interface {
    Conf::parse("wg0.conf", FILE).unwrap().interface
}

fn job(index: u32, path: impl Into<PathBuf>, conf: Interface) -> Job {
    Job { interface: "wg0".into(), index, path: path.into(), conf }
}

fn message() -> Vec<u8> {
    job(7, "/etc/a b\n.conf", interface()).write()
}

#[test]
fn job_is_read_back_and_does_not_contain_a_key() {
    let message = message();
    assert!(!message.windows(4).any(|bytes| bytes == b"yAnz"), "the private key");
    let read = Job::read(&message).unwrap();
    let conf = Interface { private_key: None, listen_port: None, ..interface() };
    let path = PathBuf::from("/etc/a b\n.conf");
    assert_eq!(read, Job { interface: "wg0".into(), index: 7, path, conf });
    for cut in [
        &b""[..],
        b"wg0",
        b"wg0\x007",
        b"wg0\x007\0/etc/wg0.conf",
        b"wg0\0/etc/wg0.conf\0[Interface]\n",
        b"wg0\x007\0/etc/wg0.conf\0[Interface]\nx",
    ] {
        assert!(Job::read(cut).is_err(), "{cut:?}");
    }
}

#[test]
fn each_step_is_executed_before_its_reply_and_a_closed_connection_ends_the_service() {
    let (line, theirs) = UnixStream::pair().unwrap();
    let (told, done) = channel();
    thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let job = Job::receive(&theirs).unwrap();
            serve(&theirs, &mut |step, text| {
                told.send((job.conf.hooks.clone(), step, text.len())).unwrap();
                Ok(StepResult::Succeeded)
            })
        });
        let mut guardian = Guardian::begin(line, &message()).unwrap();
        let state = DeviceState { listen_port: 7, ..DeviceState::default() };
        for step in Step::ALL {
            match step {
                step if step.has_text() => guardian.save(step, &state).unwrap(),
                step => guardian.run_step(step).unwrap(),
            }
            let (hooks, heard, length) = done.try_recv().expect("it was done");
            assert_eq!((hooks.post_down.len(), heard), (1, step));
            assert_eq!(length > 0, step.has_text());
        }
        drop(guardian);
        serving.join().unwrap().unwrap();
    });
    assert!(done.try_recv().is_err());
}

#[test]
fn exited_guardian_is_reported() {
    let (line, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let said = Guardian { line }.run_step(Step::PreDown).unwrap_err();
    assert!(said.to_string().contains("linerate down") && !said.is::<StepFailed>(), "{said}");
    let (line, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    assert!(Guardian::begin(line, &message()).is_err());
}

#[test]
fn guardian_that_cannot_start_its_job_sends_the_reason() {
    let (line, theirs) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        let refusing =
            scope.spawn(move || GuardianServer::receive(&theirs).err().unwrap().to_string());
        let error = Guardian::begin(line, b"wg0").unwrap_err();
        assert_eq!(format!("{error:#}"), "invalid job: the message is incomplete");
        assert_eq!(refusing.join().unwrap(), "invalid job");
    });
    let (line, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let error = Guardian::begin(line, &message()).unwrap_err();
    assert!(!error.to_string().contains("buffer"), "{error:#}");
}

#[test]
fn failed_step_differs_from_an_exited_guardian() {
    let (line, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(&[FAILED, DONE]).unwrap();
    let mut guardian = Guardian { line };
    let failed = guardian.run_step(Step::PreDown).unwrap_err();
    assert_eq!(failed.downcast_ref(), Some(&StepFailed(Step::PreDown)));
    guardian.save(Step::SaveConfig, &DeviceState::default()).unwrap();
}

/// Sends these messages after the job. Returns the number of steps that were carried out.
fn send_all(messages: &[&[u8]], outcome: StepResult) -> (usize, anyhow::Result<()>) {
    let (line, theirs) = UnixStream::pair().unwrap();
    framing::send(&line, &[&message()]).unwrap();
    for message in messages {
        framing::send(&line, &[message]).unwrap();
    }
    line.shutdown(Shutdown::Write).unwrap();
    let mut done = 0;
    Job::receive(&theirs).unwrap();
    let served = serve(&theirs, &mut |_, _| {
        done += 1;
        Ok(outcome)
    });
    (done, served)
}

#[test]
fn repeated_unknown_or_unordered_steps_end_the_connection() {
    let [before, save, after] = [&b"PreDown\n"[..], b"SaveConfig\n", b"PostDown\n"];
    let elsewhere = &b"SaveElsewhere\n"[..];
    assert!(matches!(
        send_all(&[before, save, elsewhere, after], StepResult::Succeeded),
        (4, Ok(()))
    ));
    assert!(matches!(send_all(&[after], StepResult::Succeeded), (1, Ok(()))));
    for failed in [
        // The peer continued, as after a signal, or started again, because the interface stayed.
        &[before, save, elsewhere, after][..],
        &[before, before, before, save, before],
    ] {
        let (count, served) = send_all(failed, StepResult::Failed);
        assert!(count == failed.len() && served.is_ok(), "{failed:?}: {count}, {served:?}");
    }
    for failed in [&[before, save, save][..], &[before, elsewhere, before], &[after, before]] {
        let (count, served) = send_all(failed, StepResult::Failed);
        assert!(count == failed.len() - 1 && served.is_err(), "{failed:?}: {count}, {served:?}");
    }
    for (messages, done) in [
        (&[before, before][..], 1),
        (&[after, after], 1),
        (&[after, before], 1),
        (&[save, save], 1),
        (&[b"PostUp\n"], 0),
        (&[b"PreDown"], 0),
        (&[b"PreDown\ntouch /tmp/x"], 0),
        (&[b"SaveConfig\n\xff"], 0),
        (&[b""], 0),
    ] {
        let (count, served) = send_all(messages, StepResult::Succeeded);
        assert!(count == done && served.is_err(), "{messages:?}: {count}, {served:?}");
    }
}

#[test]
fn post_down_is_refused_while_the_interface_exists() {
    let Ok(tun) = sys::Tun::create("guarded0", 1420, &std::sync::Arc::default()) else {
        return skips::skip("/dev/net/tun");
    };
    // `lo` stands for a link that has the index of a moved interface. The largest index does not
    // exist.
    for (index, is_accepted) in [(tun.2.index, false), (1, true), (i32::MAX as u32, true)] {
        let job = job(index, "wg0.conf", interface());
        for step in [Step::PreDown, Step::SaveConfig] {
            job.check_timing(step).unwrap();
        }
        assert_eq!(job.check_timing(Step::PostDown).is_ok(), is_accepted, "{index}");
    }
}

#[test]
fn no_step_is_accepted_after_a_refused_one() {
    let (line, theirs) = UnixStream::pair().unwrap();
    for message in [&b"PreDown\n"[..], b"PostDown\n"] {
        framing::send(&line, &[message]).unwrap();
    }
    let mut heard = Vec::new();
    let served = serve(&theirs, &mut |step, _| {
        heard.push(step);
        anyhow::bail!("refused")
    });
    assert_eq!((heard, served.is_err()), (vec![Step::PreDown], true));
}

/// Has a guardian save this text, and returns the resulting file.
fn saved_by(name: &str, file: &str, told: &str) -> String {
    let name = format!("linerate-guardian-{name}-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("wg0.conf");
    fs::write(&path, file).unwrap();
    let (line, theirs) = UnixStream::pair().unwrap();
    let interface = Conf::parse("wg0.conf", file).unwrap().interface;
    thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let job = Job::receive(&theirs).unwrap();
            serve(&theirs, &mut |_, text| {
                log_error(job.save(text, None));
                Ok(StepResult::Succeeded)
            })
        });
        let mut guardian = Guardian::begin(line, &job(7, &path, interface).write()).unwrap();
        guardian.send_step(Step::SaveConfig, told).unwrap();
        drop(guardian);
        serving.join().unwrap().unwrap();
    });
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "beside the file");
    fs::remove_dir_all(folder).unwrap();
    text
}

#[test]
fn only_the_state_of_the_device_is_saved_for_a_peer() {
    let state = DeviceState {
        private_key: Some(PrivateKey::from_bytes(&[0x40; 32])),
        listen_port: 9,
        fwmark: 0x200,
        peers: Vec::new(),
    };
    let peer = "\n[Peer]\nPublicKey = AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n\
                AllowedIPs = 10.0.0.2/32\nEndpoint = 192.0.2.1:5\n";
    let good = format!("{}{peer}", *conf::write_state(&state));
    let saved = saved_by("good", FILE, &good);
    assert_eq!(saved, format!("{}{peer}", *conf::write(&interface(), &state)));
    for hook in ["PreUp = true", "PostUp = echo # %i", "PostDown = echo PreDown"] {
        assert!(saved.contains(hook), "{saved}");
    }

    let hostile = |line: &str| good.replacen('\n', &format!("\n{line}\n"), 1);
    for told in [
        hostile("PostUp = touch /tmp/x"),
        hostile("postdown=touch /tmp/x"),
        hostile("PreUp ="),
        hostile("Address = 10.0.0.9/24"),
        hostile("DNS = 10.0.0.9"),
        hostile("MTU = 1280"),
        hostile("Table = off"),
        hostile("SaveConfig = true"),
        hostile("IpForward = true"),
        hostile("Socks5 = 127.0.0.1:1080"),
        hostile("# a comment"),
        hostile("[Interface]"),
        good.replace("192.0.2.1:5", "name.example:5"),
        good.replace("10.0.0.2/32", "10.0.0.2/32\r\nPostUp = true"),
        format!("{good}\nPostUp = touch /tmp/x\n"),
        format!("{good}{peer}"),
        "[Interface]".into(),
        String::new(),
    ] {
        assert_eq!(saved_by("hostile", FILE, &told), FILE, "{told}");
    }
    // A peer cannot save without SaveConfig in the file.
    let plain = FILE.replace("SaveConfig = true\n", "");
    assert_eq!(saved_by("plain", &plain, &good), plain);
}

#[test]
fn each_step_runs_its_hooks_for_the_interface() {
    let name = format!("linerate-hooks-{}", std::process::id());
    let folder = std::env::temp_dir().join(&name);
    fs::create_dir_all(&folder).unwrap();
    let log = folder.join("log");
    let say = |key: &str| format!("{key} = echo {key} %i >> {}\n", log.display());
    let keys = ["PreUp", "PostUp", "PreDown", "PostDown"];
    let hooks: String = keys.iter().map(|key| say(key)).collect();
    let conf = Conf::parse("wg0.conf", &format!("[Interface]\n{hooks}")).unwrap().interface;
    // The largest index does not exist.
    let job = Job { interface: name.clone(), ..job(i32::MAX as u32, "wg0.conf", conf) };
    let mut server = GuardianServer::begin(job, Callers::default()).unwrap();
    let mut expected = String::new();
    for step in [Step::PreDown, Step::PostDown] {
        assert_eq!(server.carry_out(step, "").unwrap(), StepResult::Succeeded);
        expected += &format!("{} {name}\n", step.key());
        assert_eq!(fs::read_to_string(&log).unwrap(), expected);
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn failed_hook_is_a_failed_step_and_the_guardian_continues() {
    let text = "[Interface]\nPreDown = true\nPreDown = false\nPostDown = exit 3\n";
    let conf = Conf::parse("wg0.conf", text).unwrap().interface;
    let job = job(i32::MAX as u32, "wg0.conf", conf);
    let mut server = GuardianServer::begin(job, Callers::default()).unwrap();
    for step in [Step::PreDown, Step::PreDown, Step::PostDown] {
        assert_eq!(server.carry_out(step, "").unwrap(), StepResult::Failed, "{step:?}");
    }
}

#[test]
fn waiting_command_runs_the_hooks_and_prints_the_errors() {
    let name = format!("linerate-caller-{}", std::process::id());
    let folder = std::env::temp_dir().join(&name);
    fs::create_dir_all(&folder).unwrap();
    let folder = folder.canonicalize().unwrap();
    let log = folder.join("log");
    let hooks = format!(
        "PreDown = echo $PPID $INTERFACE $CONFIG_FILE $PWD >{}\nPreDown = false",
        log.display()
    );
    let conf = Conf::parse("wg0.conf", &format!("[Interface]\n{hooks}\n")).unwrap().interface;
    let job = job(i32::MAX as u32, folder.join("a b.conf"), conf);
    let (line, theirs) = UnixStream::pair().unwrap();
    let printed = thread::scope(|scope| {
        let command = scope.spawn(|| {
            let mut printed = Vec::new();
            let failed =
                caller::serve_background(&line, |text| printed.push(text.to_owned())).unwrap();
            (failed, printed)
        });
        let caller = Caller::from_start(theirs);
        let callers = Callers { listener: None, accepted: vec![caller.clone()] };
        let mut server = GuardianServer::begin(job, callers).unwrap();
        assert_eq!(server.carry_out(Step::PreDown, "").unwrap(), StepResult::Failed);
        assert!(server.callers.accepted.is_empty(), "its `down` has failed");
        caller::report_to(caller);
        caller::report(tracing::Level::WARN, "a warning");
        caller::report(tracing::Level::INFO, "no warning");
        caller::report(tracing::Level::ERROR, "an error\nof two lines");
        caller::stop_reporting();
        command.join().unwrap()
    });
    assert_eq!(printed, (true, vec!["a warning".into(), "an error\nof two lines".into()]));
    let (own, folder) = (std::process::id(), folder.display());
    let said = format!("{own} wg0 {folder}/a b.conf {folder}\n");
    assert_eq!(fs::read_to_string(&log).unwrap(), said);
    fs::remove_dir_all(std::env::temp_dir().join(name)).unwrap();
}

#[test]
fn addresses_are_saved_in_the_order_of_the_file_without_those_of_the_kernel() {
    let nets = |texts: &[&str]| texts.iter().map(|net| net.parse().unwrap()).collect::<Vec<_>>();
    let in_file = nets(&["fd00::1/64", "10.0.0.1/24", "fe80::5/64", "10.0.0.2/24"]);
    let on_link = nets(&[
        "10.0.0.2/24",
        "10.0.0.9/24",
        "fe80::abcd/64",
        "fd00::2/64",
        "fd00::1/64",
        "fe80::5/64",
    ]);
    assert_eq!(
        addresses_now(&in_file, on_link, true),
        nets(&["fd00::1/64", "fe80::5/64", "10.0.0.2/24", "10.0.0.9/24", "fd00::2/64"])
    );
    // They were skipped at a start without IPv6, but the next start may have IPv6.
    assert_eq!(
        addresses_now(&in_file, nets(&["10.0.0.2/24", "10.0.0.9/24"]), false),
        nets(&["fd00::1/64", "fe80::5/64", "10.0.0.2/24", "10.0.0.9/24"])
    );
}
