//! Tests of undoing entries.

use super::*;

/// A test folder with a setting that contains "0".
struct Host {
    folder: PathBuf,
    setting: PathBuf,
}

impl Host {
    fn new(name: &str) -> Self {
        let name = format!("linerate-undoing-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let below = Path::new("/proc/sys/../..").join(folder.strip_prefix("/").unwrap());
        let setting = below.join("setting");
        fs::write(&setting, "0").unwrap();
        Self { folder, setting }
    }

    fn log(&self, interface: &str) -> UndoLog {
        let path = self.folder.join(interface).with_extension(EXTENSION);
        UndoLog { interface: interface.into(), path, entries: Vec::new() }
    }

    fn value(&self) -> String {
        fs::read_to_string(&self.setting).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Changes a setting. Returns whether it was written.
fn change(log: &mut UndoLog, setting: &Path, ours: &'static str) -> bool {
    let lock = log.lock_settings().unwrap();
    log.change_settings(&lock, &[(setting.to_owned(), ours)]).unwrap().is_empty()
}

fn undo(log: &mut UndoLog) {
    log.undo(&Netlink::open().unwrap());
}

#[test]
fn setting_that_was_changed_twice_is_restored_to_its_first_value() {
    let host = Host::new("twice");
    let mut log = host.log("wg1");
    for ours in ["1", "2"] {
        assert!(change(&mut log, &host.setting, ours));
    }
    undo(&mut log);
    assert_eq!((host.value().as_str(), log.is_empty()), ("0", true));
}

#[test]
fn shared_setting_is_restored_by_the_last_interface() {
    let host = Host::new("another");
    let mut logs = ["wg1", "wg2"].map(|name| host.log(name));
    for log in &mut logs {
        assert!(change(log, &host.setting, "1"));
    }
    for (log, left) in logs.iter_mut().zip(["1", "0"]) {
        undo(log);
        assert_eq!(host.value(), left);
    }
}

#[test]
fn setting_that_another_program_changed_is_not_restored() {
    let host = Host::new("since");
    let mut log = host.log("wg1");
    assert!(change(&mut log, &host.setting, "1"));
    fs::write(&host.setting, "7\n").unwrap();
    undo(&mut log);
    assert_eq!((host.value().as_str(), log.is_empty()), ("7\n", true));
}

#[test]
fn failed_entry_stays_in_the_log_and_the_others_are_undone() {
    let host = Host::new("stays");
    let mut log = host.log("wg1");
    // A folder can neither be read nor written.
    let path = host.setting.with_file_name(".");
    let stuck = Undo::Setting(Setting { path, ours: "1".into(), previous: "0".into() });
    log.record(stuck.clone()).unwrap();
    assert!(change(&mut log, &host.setting, "1"));
    let file = log.path.clone();
    undo(&mut log);
    assert_eq!((host.value().as_str(), log.entries()), ("0", &[stuck.clone()][..]));
    assert_eq!(read(&file).unwrap(), [stuck]);
}

#[test]
fn entry_is_written_before_the_change() {
    let host = Host::new("before");
    let mut log = host.log("wg1");
    log.record(Undo::Table).unwrap();
    // If the log were written second, it would replace the "1".
    let file = log.path.clone();
    assert!(change(&mut log, &file, "1"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "1");
}

#[test]
fn unwritable_setting_is_returned_and_the_others_are_changed() {
    let host = Host::new("unwritten");
    let mut log = host.log("wg1");
    // The kernel refuses writes, even by root.
    let fixed = Path::new("/proc/sys/kernel/ostype").to_owned();
    let gone = host.setting.with_file_name("gone");
    let lock = log.lock_settings().unwrap();
    let wanted = [(fixed.clone(), "1"), (gone, "1"), (host.setting.clone(), "1")];
    let unwritten = log.change_settings(&lock, &wanted).unwrap();
    drop(lock);
    assert_eq!(unwritten.iter().map(|one| &one.path).collect::<Vec<_>>(), [&fixed]);
    assert_eq!(host.value(), "1");
    let setting =
        Setting { path: host.setting.clone(), ours: "1".to_owned(), previous: "0".to_owned() };
    assert_eq!(read(&log.path).unwrap(), [Undo::Setting(setting)]);
}

#[test]
fn only_the_named_rules_are_removed() {
    let host = Host::new("rules");
    let mut log = host.log("wg1");
    let rules = [1, 2].map(|priority| Rule {
        family: Family::V4,
        priority: Some(priority),
        table: 7,
        fwmark: None,
        invert: false,
        suppress_prefix_length: None,
    });
    for rule in rules {
        log.record(Undo::Rule(rule)).unwrap();
    }
    log.record(Undo::Table).unwrap();
    log.remove_rules(&rules[..1]).unwrap();
    assert_eq!(read(&log.path).unwrap(), [Undo::Rule(rules[1]), Undo::Table]);
}
