//! ContainerLab's variables in the name of a topology: branch and commit of its repository.

use std::path::{Component, Path, PathBuf};

use experiment::input::read_text;

const BRANCH: &str = "__gitBranch__";
const COMMIT: &str = "__gitHash__";
/// What stands for a branch or commit that there is not.
const NONE: &str = "none";
/// Characters of a commit.
const SHORT: usize = 7;

/// Replaces `__gitBranch__` and `__gitHash__` by the branch, with `-` for `/`, and the first seven
/// characters of the commit of the repository whose top is `directory`; by `none` elsewhere.
pub(super) fn named(name: String, directory: &Path) -> String {
    if !name.contains(BRANCH) && !name.contains(COMMIT) {
        return name;
    }
    let (branch, commit) = head(directory).unwrap_or((None, None));
    let branch = branch.map_or_else(|| NONE.to_owned(), |branch| branch.replace('/', "-"));
    let is_commit = |commit: &&str| commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    let commit = commit.as_deref().filter(is_commit).and_then(|commit| commit.get(..SHORT));
    let commit = commit.unwrap_or(NONE);
    name.replace(BRANCH, &branch).replace(COMMIT, commit)
}

/// The branch, or `HEAD` without one, and the commit.
fn head(directory: &Path) -> Option<(Option<String>, Option<String>)> {
    let git = git_directory(directory)?;
    let head = read_text(&git.join("HEAD")).ok()?;
    let head = head.trim();
    let Some(reference) = head.strip_prefix("ref: ") else {
        return Some((Some("HEAD".to_owned()), Some(head.to_owned())));
    };
    // A work tree has the references of its repository.
    let common = read_text(&git.join("commondir"))
        .map_or_else(|_| git.clone(), |path| git.join(path.trim()));
    // A stranger's repository names no other files.
    let is_plain = |part| matches!(part, Component::Normal(_));
    if !reference.starts_with("refs/") || !Path::new(reference).components().all(is_plain) {
        return None;
    }
    let loose = read_text(&common.join(reference)).ok().map(|text| text.trim().to_owned());
    let packed = || {
        let all = read_text(&common.join("packed-refs")).ok()?;
        let line = all.lines().find(|line| line.split(' ').nth(1) == Some(reference))?;
        line.split(' ').next().map(str::to_owned)
    };
    let branch = reference.strip_prefix("refs/heads/").unwrap_or(reference);
    Some((Some(branch.to_owned()), loose.or_else(packed)))
}

/// `.git`, or where a file of this name says that it is.
fn git_directory(directory: &Path) -> Option<PathBuf> {
    let git = directory.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    let text = read_text(&git).ok()?;
    Some(directory.join(text.strip_prefix("gitdir: ")?.trim()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_name_has_branch_and_commit() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path();
        let git = top.join(".git");
        fs::create_dir_all(git.join("refs/heads/feature")).unwrap();
        let name = || named("x-__gitBranch__-__gitHash__".to_owned(), top);
        assert_eq!(name(), "x-none-none");
        fs::write(git.join("HEAD"), "ref: refs/heads/feature/test\n").unwrap();
        assert_eq!(name(), "x-feature-test-none");
        fs::write(git.join("packed-refs"), "# pack-refs\nabcdef0123 refs/heads/feature/test\n")
            .unwrap();
        assert_eq!(name(), "x-feature-test-abcdef0");
        fs::write(git.join("refs/heads/feature/test"), "0123456789\n").unwrap();
        assert_eq!(name(), "x-feature-test-0123456");
        fs::write(git.join("HEAD"), "fedcba9876\n").unwrap();
        assert_eq!(name(), "x-HEAD-fedcba9");
        // No other file is read, and nothing else than a commit is told of one.
        fs::write(top.join("secret"), "0123456789\n").unwrap();
        for reference in ["refs/../../secret", "../secret", "/etc/hostname"] {
            fs::write(git.join("HEAD"), format!("ref: {reference}\n")).unwrap();
            assert_eq!(name(), "x-none-none", "{reference}");
        }
        fs::write(git.join("HEAD"), "no commit\n").unwrap();
        assert_eq!(name(), "x-HEAD-none");
        assert_eq!(named("plain".to_owned(), top), "plain");
    }
}
