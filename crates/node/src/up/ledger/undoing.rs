//! What is taken back, and what stays.

use super::*;

/// A folder of a test's own with a setting in it, which says "0".
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

    fn ledger(&self, interface: &str) -> Ledger {
        let path = self.folder.join(interface).with_extension(EXTENSION);
        Ledger { interface: interface.into(), path, deeds: Vec::new() }
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

fn change(ledger: &mut Ledger, setting: &Path, ours: &str) -> anyhow::Result<()> {
    let alone = ledger.alone()?;
    ledger.change_setting(&alone, setting, ours)
}

fn undo(ledger: &mut Ledger) {
    ledger.undo(&Netlink::open().unwrap());
}

#[test]
fn a_setting_that_was_changed_twice_is_taken_back_to_what_it_was_first() {
    let host = Host::new("twice");
    let mut ledger = host.ledger("wg1");
    for ours in ["1", "2"] {
        change(&mut ledger, &host.setting, ours).unwrap();
    }
    undo(&mut ledger);
    assert_eq!((host.value().as_str(), ledger.is_empty()), ("0", true));
}

#[test]
fn a_setting_stays_while_another_interface_wants_it_and_then_is_what_it_was_first() {
    let host = Host::new("another");
    let mut ledgers = ["wg1", "wg2"].map(|name| host.ledger(name));
    for ledger in &mut ledgers {
        change(ledger, &host.setting, "1").unwrap();
    }
    for (ledger, left) in ledgers.iter_mut().zip(["1", "0"]) {
        undo(ledger);
        assert_eq!(host.value(), left);
    }
}

#[test]
fn a_setting_that_was_changed_by_somebody_else_since_stays() {
    let host = Host::new("since");
    let mut ledger = host.ledger("wg1");
    change(&mut ledger, &host.setting, "1").unwrap();
    fs::write(&host.setting, "7\n").unwrap();
    undo(&mut ledger);
    assert_eq!((host.value().as_str(), ledger.is_empty()), ("7\n", true));
}

#[test]
fn what_cannot_be_taken_back_stays_written_down_and_the_rest_is_taken_back() {
    let host = Host::new("stays");
    let mut ledger = host.ledger("wg1");
    // A folder can neither be read nor written.
    let path = host.setting.with_file_name(".");
    let stuck = Deed::Setting(Setting { path, ours: "1".into(), former: "0".into() });
    ledger.note(stuck.clone()).unwrap();
    change(&mut ledger, &host.setting, "1").unwrap();
    let file = ledger.path.clone();
    undo(&mut ledger);
    assert_eq!((host.value().as_str(), ledger.deeds()), ("0", &[stuck.clone()][..]));
    assert_eq!(read(&file).unwrap(), [stuck]);
}

#[test]
fn a_deed_is_written_down_before_it_is_done() {
    let host = Host::new("before");
    let mut ledger = host.ledger("wg1");
    // The kernel lets nobody write it, root neither.
    let fixed = Path::new("/proc/sys/kernel/ostype");
    assert!(change(&mut ledger, fixed, "1").is_err());
    let written = read(&ledger.path).unwrap();
    let [Deed::Setting(Setting { path, ours, .. })] = &written[..] else { panic!("{written:?}") };
    assert_eq!((path.as_path(), ours.as_str()), (fixed, "1"));
}

#[test]
fn only_the_rules_that_are_named_are_struck_out() {
    let host = Host::new("rules");
    let mut ledger = host.ledger("wg1");
    let rules = [1, 2].map(|priority| Rule {
        family: Family::V4,
        priority: Some(priority),
        table: 7,
        fwmark: None,
        invert: false,
        suppress_prefix_length: None,
    });
    for rule in rules {
        ledger.note(Deed::Rule(rule)).unwrap();
    }
    ledger.note(Deed::Table).unwrap();
    ledger.strike_rules(&rules[..1]).unwrap();
    assert_eq!(read(&ledger.path).unwrap(), [Deed::Rule(rules[1]), Deed::Table]);
}
