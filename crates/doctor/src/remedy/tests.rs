use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    os::unix::fs::PermissionsExt,
};

use super::*;

/// A host with these settings. It refuses to write while `refuses` is set.
#[derive(Default)]
struct Fake {
    values: RefCell<BTreeMap<String, String>>,
    refuses: Cell<bool>,
}

impl Settings for &Fake {
    fn read(&self, target: &Target) -> io::Result<Option<String>> {
        Ok(self.values.borrow().get(&target.to_string()).cloned())
    }

    fn write(&self, target: &Target, value: &str) -> io::Result<()> {
        if self.refuses.get() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.values.borrow_mut().insert(target.to_string(), value.to_owned());
        Ok(())
    }
}

impl Fake {
    fn new() -> Self {
        let fake = Self::default();
        fake.put(MTU, "1420");
        fake.put(GRO, "off");
        fake
    }

    fn put(&self, target: &str, value: &str) {
        self.values.borrow_mut().insert(target.to_owned(), value.to_owned());
    }

    fn has(&self, mtu: &str, gro: &str) -> bool {
        let values = self.values.borrow();
        (values[MTU].as_str(), values[GRO].as_str()) == (mtu, gro)
    }
}

const MTU: &str = "mtu wg0";
const GRO: &str = "feature eth0 rx-gro";

fn wanted() -> [Setting; 2] {
    [Setting::mtu("wg0", 1380), Setting::feature("eth0", "rx-gro", true)]
}

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = format!("linerate-remedy-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(folder))
    }

    fn open<'a>(&self, fake: &'a Fake, namespace: u64) -> Remedy<&'a Fake> {
        Remedy::open_in(&self.0, fake, namespace).unwrap()
    }

    fn text(&self) -> Option<String> {
        fs::read_to_string(self.0.join(FILE)).ok()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn applied_settings_are_undone_by_another_process_and_the_file_is_private() {
    let (folder, fake) = (Folder::new("back"), Fake::new());
    let applied = folder.open(&fake, 1).apply(wanted().iter()).unwrap();
    assert!(applied.iter().all(|(_, result)| result.is_ok()));
    assert!(fake.has("1380", "on"));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder.0), mode(&folder.0.join(FILE))), (0o700, 0o600));
    assert_eq!(folder.text().unwrap(), "1\tmtu wg0\t1420\t1380\n1\tfeature eth0 rx-gro\toff\ton\n");
    let undone = folder.open(&fake, 1).undo().unwrap();
    assert!(fake.has("1420", "off"));
    assert!(undone.iter().all(|(_, undone)| matches!(undone, UndoOutcome::Restored)), "{undone:?}");
    assert_eq!(undone[0].0, Setting::feature("eth0", "rx-gro", false), "the last comes first");
    assert_eq!(folder.text(), None);
    assert!(folder.open(&fake, 1).undo().unwrap().is_empty());
}

#[test]
fn undo_affects_only_its_own_namespace() {
    let (folder, fake, other) = (Folder::new("namespace"), Fake::new(), Fake::new());
    folder.open(&fake, 1).apply(wanted().iter()).unwrap();
    folder.open(&other, 2).apply(wanted().iter()).unwrap();
    folder.open(&other, 2).undo().unwrap();
    assert!(fake.has("1380", "on") && other.has("1420", "off"));
    folder.open(&fake, 1).undo().unwrap();
    assert!(fake.has("1420", "off"));
}

#[test]
fn changed_setting_is_not_undone_and_absent_target_is_reported() {
    let (folder, fake) = (Folder::new("changed"), Fake::new());
    folder.open(&fake, 1).apply(wanted().iter()).unwrap();
    fake.put(MTU, "1300");
    fake.values.borrow_mut().remove(GRO);
    let undone = folder.open(&fake, 1).undo().unwrap();
    let [(_, UndoOutcome::Gone), (_, UndoOutcome::Changed(now))] = &undone[..] else {
        panic!("{undone:?}")
    };
    assert_eq!((now.as_str(), folder.text()), ("1300", None));
}

#[test]
fn undo_restores_the_first_value_after_several_changes() {
    let (folder, fake) = (Folder::new("often"), Fake::new());
    for mtu in [1380, 1300] {
        folder.open(&fake, 1).apply([Setting::mtu("wg0", mtu)].iter()).unwrap();
    }
    assert!(fake.has("1300", "off"));
    folder.open(&fake, 1).undo().unwrap();
    assert!(fake.has("1420", "off"));
}

#[test]
fn refused_or_unneeded_changes_are_not_recorded() {
    let (folder, fake) = (Folder::new("refused"), Fake::new());
    fake.refuses.set(true);
    let applied = folder.open(&fake, 1).apply(wanted().iter()).unwrap();
    assert!(applied.iter().all(|(_, result)| result.is_err()));
    let as_it_is = folder.open(&fake, 1).apply([Setting::mtu("wg0", 1420)].iter()).unwrap();
    assert!(as_it_is[0].1.is_ok());
    let absent = folder.open(&fake, 1).apply([Setting::mtu("wg9", 1420)].iter()).unwrap();
    assert!(absent[0].1.is_err());
    assert_eq!(folder.text(), None);
}

#[test]
fn failed_undo_can_be_repeated() {
    let (folder, fake) = (Folder::new("again"), Fake::new());
    folder.open(&fake, 1).apply(wanted().iter()).unwrap();
    fake.refuses.set(true);
    let undone = folder.open(&fake, 1).undo().unwrap();
    assert!(undone.iter().all(|(_, undone)| matches!(undone, UndoOutcome::Failed(_))));
    fake.refuses.set(false);
    folder.open(&fake, 1).undo().unwrap();
    assert!(fake.has("1420", "off"));
}
