//! nvme-cli's commands, with what they must answer.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::pair;
use crate::guest::daemon::TENANT_SIZE_MIB;
use crate::guest::kill::sanitize;
use crate::guest::lab::{Lab, Tenant};
use crate::guest::qemu::Guest;

const NAMESPACE: &str = "/dev/nvme0n1";
const LIMIT: Duration = Duration::from_secs(120);

/// Queues, Identify, logs, features, arbitration and data commands, as the kernel and nvme-cli see them.
pub fn identify_and_commands(lab: &mut Lab) -> Result<()> {
    pair::four_queues(lab)?;
    identify(lab)?;
    logs_and_features(lab)?;
    arbitration(lab)?;
    data_commands(lab)
}

/// Identify Controller and Identify Namespace say what the controller is.
fn identify(lab: &mut Lab) -> Result<()> {
    let is_evenkeel = lab.is_evenkeel();
    let guest = lab.guest(Tenant::BestEffort)?;
    let controller = json(guest, "nvme id-ctrl /dev/nvme0 -o json")?;
    // Entry sizes: 64 bytes for submissions, 16 for completions.
    ensure!(number(&controller, "sqes")? == 0x66, "sqes: {controller}");
    ensure!(number(&controller, "cqes")? == 0x44, "cqes: {controller}");
    ensure!(number(&controller, "nn")? >= 1, "nn: {controller}");
    let optional = number(&controller, "oncs")?;
    for (bit, command) in [(0, "Compare"), (2, "Dataset Management"), (3, "Write Zeroes")] {
        ensure!(optional >> bit & 1 == 1, "ONCS {optional:#x} lacks {command}");
    }
    ensure!(number(&controller, "oacs")? >> 1 & 1 == 1, "OACS lacks Format NVM: {controller}");
    if is_evenkeel {
        ensure!(number(&controller, "ver")? >> 16 == 2, "not NVMe 2.x: {controller}");
        ensure!(number(&controller, "oacs")? >> 8 & 1 == 1, "no Doorbell Buffer Config");
    }
    for text in ["sn", "mn", "fr", "subnqn"] {
        let value = controller[text].as_str().unwrap_or_default();
        ensure!(!value.trim().is_empty(), "{text} is empty: {controller}");
    }

    let namespace = json(guest, &format!("nvme id-ns {NAMESPACE} -o json"))?;
    let blocks = number(&namespace, "nsze")?;
    let (index, lbads) = current_format(&namespace)?;
    ensure!(blocks << lbads == TENANT_SIZE_MIB << 20, "nsze {blocks} of 2^{lbads} bytes");
    ensure!(number(&namespace, "ncap")? == blocks, "ncap: {namespace}");
    ensure!(index as usize == find_format(&namespace, lbads)?, "flbas: {namespace}");
    for lbads in [9, 12] {
        find_format(&namespace, lbads)?;
    }
    ensure!(guest.run("nvme list-ns /dev/nvme0")?.contains("0x1"), "namespace 1 is not listed");
    guest.run(&format!("nvme ns-descs {NAMESPACE}"))?;
    Ok(())
}

/// SMART counts what the host does; every log and feature that the controller must have answers.
fn logs_and_features(lab: &mut Lab) -> Result<()> {
    let is_evenkeel = lab.is_evenkeel();
    let guest = lab.guest(Tenant::BestEffort)?;
    if is_evenkeel {
        let promise = guest.run("nvme get-log /dev/nvme0 --log-id=0xc0 --log-len=4096")?;
        ensure!(promise.contains("EVENKEEL"), "not the log page of its promise: {promise}");
    }
    let smart = "nvme smart-log /dev/nvme0 -o json";
    let before = json(guest, smart)?;
    guest.run(&format!("dd if=/dev/zero of={NAMESPACE} bs=64k count=50 oflag=direct"))?;
    guest.run(&format!("dd if={NAMESPACE} of=/dev/null bs=64k count=40 iflag=direct"))?;
    let after = json(guest, smart)?;
    ensure!(number(&after, "critical_warning")? == 0, "a warning: {after}");
    for (counter, at_least) in [("host_write_commands", 50), ("host_read_commands", 40)] {
        let grown = number(&after, counter)?.saturating_sub(number(&before, counter)?);
        ensure!(grown >= at_least, "{counter} grew by {grown} over {at_least} commands");
    }
    ensure!(
        number(&after, "data_units_written")? > number(&before, "data_units_written")?,
        "data units written did not grow over 3 MiB: {before}, then {after}"
    );
    // Without its command set named, effects-log maps the registers, which this kernel forbids.
    for log in ["error-log", "fw-log", "effects-log --csi=0"] {
        let answer = guest.run(&format!("nvme {log} /dev/nvme0"))?;
        ensure!(!answer.trim().is_empty(), "{log} says nothing");
    }

    // Arbitration, power, temperature, error recovery, write cache, queues, two of interrupt
    // coalescing, write atomicity, asynchronous events.
    for feature in [1, 2, 4, 5, 6, 7, 8, 9, 10, 11] {
        let namespace_id = u32::from(feature == 5);
        let command = format!("nvme get-feature /dev/nvme0 -f {feature} -n {namespace_id}");
        let answer = guest.run(&command)?;
        ensure!(answer.to_lowercase().contains("value"), "feature {feature}: {answer}");
    }
    let queues = guest.run("nvme get-feature /dev/nvme0 -f 7")?;
    let value = last_hex(&queues)?;
    let (submission, completion) = ((value & 0xffff) + 1, (value >> 16) + 1);
    ensure!(submission >= 4 && completion >= 4, "queues granted: {queues}");
    Ok(())
}

/// A guest reads and sets the weights of its queues, and a reset brings the defaults back.
fn arbitration(lab: &mut Lab) -> Result<()> {
    let is_evenkeel = lab.is_evenkeel();
    let guest = lab.guest(Tenant::BestEffort)?;
    let recommended = number(&json(guest, "nvme id-ctrl /dev/nvme0 -o json")?, "rab")?;
    ensure!(recommended <= 7, "rab is a power of two's exponent: {recommended}");
    let default = feature(guest, 0x01)?;
    if !is_evenkeel {
        // QEMU's controller has the feature, and nothing behind it.
        return Ok(());
    }
    ensure!(u64::from(default & 7) == recommended, "AB of {default:#x} is not RAB, {recommended}");
    // HPW, MPW and LPW, 0's based, then AB; the quanta in KiB, and each value of the widest.
    for (fid, values) in [(0x01, [0x3f1f_0f07, 0xff00_0102, 0x1f0f_0703]), (0xc0, [0x0ff1_fc7f, 0x3fff_ffff, 0])] {
        let before = feature(guest, fid)?;
        for value in values {
            guest.run(&format!("nvme set-feature /dev/nvme0 -f {fid:#x} --value={value:#x}"))?;
            let found = feature(guest, fid)?;
            ensure!(found == value, "feature {fid:#x}: {value:#x} was set, {found:#x} is read");
            // Queues go on meanwhile.
            guest.run(&format!("dd if={NAMESPACE} of=/dev/null bs=4k count=50 iflag=direct"))?;
        }
        let supported = guest.run(&format!("nvme get-feature /dev/nvme0 -f {fid:#x} -s 1"))?;
        ensure!(last_hex(&supported)? == before, "the default of feature {fid:#x}: {supported}");
    }
    let told = guest.run("nvme get-feature /dev/nvme0 -f 1 -H")?.split_whitespace().collect::<String>();
    for field in ["(HPW):32", "(MPW):16", "(LPW):8", "(AB):8"] {
        ensure!(told.contains(field), "no {field} in {told}");
    }
    let reserved = guest.attempt("nvme set-feature /dev/nvme0 -f 0xc0 --value=0x40000000", LIMIT)?;
    ensure!(status_in(&reserved.text).as_deref() == Some("0x2"), "a reserved bit was taken: {reserved:?}");
    guest.run_within("nvme reset /dev/nvme0", LIMIT)?;
    ensure!(feature(guest, 0x01)? == default, "a reset keeps weights");
    Ok(())
}

/// The current value of a feature.
fn feature(guest: &mut Guest, fid: u32) -> Result<u32> {
    last_hex(&guest.run(&format!("nvme get-feature /dev/nvme0 -f {fid:#x}"))?)
}

/// The number at the end of an answer of nvme-cli.
fn last_hex(answer: &str) -> Result<u32> {
    let digits = answer.trim().rsplit([':', 'x']).next().unwrap_or_default();
    u32::from_str_radix(digits.trim(), 16).with_context(|| answer.to_string())
}

/// Flush, Dataset Management, Write Zeroes and Compare do what they say, and only where they were
/// told to.
fn data_commands(lab: &mut Lab) -> Result<()> {
    let guest = lab.guest(Tenant::BestEffort)?;
    guest.run("dd if=/dev/urandom of=/tmp/data bs=64k count=1")?;
    guest.run(&format!("dd if=/tmp/data of={NAMESPACE} bs=64k oflag=direct"))?;
    guest.run(&format!("nvme flush {NAMESPACE} -n 1"))?;
    // Blocks 8 to 15 are zeroed, 32 to 39 and 64 deallocated; counts of write-zeroes are zero-based.
    guest.run(&format!("nvme write-zeroes {NAMESPACE} -s 8 -c 7"))?;
    guest.run(&format!("nvme dsm {NAMESPACE} -n 1 --ad -s 32,64 -b 8,1"))?;
    for (block, count) in [(8, 8), (32, 8), (64, 1)] {
        let fill = "dd if=/dev/zero of=/tmp/data bs=512 conv=notrunc";
        guest.run(&format!("{fill} seek={block} count={count}"))?;
    }
    guest.run(&format!("dd if={NAMESPACE} of=/tmp/read bs=64k count=1 iflag=direct"))?;
    guest.run("cmp /tmp/data /tmp/read")?;

    let compare = format!("nvme compare {NAMESPACE} -s 0 -c 7 -z 4096 -d");
    guest.run(&format!("{compare} /tmp/data"))?;
    let differing = guest.attempt(&format!("{compare} /bin/busybox"), LIMIT)?;
    ensure!(
        differing.code != 0 && differing.text.contains("Compare Failure"),
        "different data compared equal: {differing:?}"
    );
    guest.run("rm /tmp/data /tmp/read")?;
    Ok(())
}

/// What the specification forbids gets the status that it names.
pub fn bad_commands(lab: &mut Lab) -> Result<()> {
    let is_evenkeel = lab.is_evenkeel();
    let guest = lab.guest(Tenant::BestEffort)?;
    let namespace = json(guest, &format!("nvme id-ns {NAMESPACE} -o json"))?;
    let blocks = number(&namespace, "nsze")?;
    let last = blocks - 1;
    guest.run(&format!("nvme read {NAMESPACE} -s {last} -c 0 -z 512 -d /tmp/last"))?;
    let past_end = format!("nvme read {NAMESPACE} -s {blocks} -c 0 -z 512 -d /tmp/last");
    let across_end = format!("nvme read {NAMESPACE} -s {last} -c 1 -z 1024 -d /tmp/last");
    let write_past = format!("nvme write {NAMESPACE} -s {blocks} -c 0 -z 512 -d /bin/busybox");
    // QEMU's controller answers Invalid Field here.
    let invalid_log = if is_evenkeel { "0x109" } else { "0x2" };
    let cases = [
        (past_end.as_str(), "0x80"),
        (across_end.as_str(), "0x80"),
        (write_past.as_str(), "0x80"),
        // An opcode that no I/O command set has, a log page and a feature that are reserved.
        ("nvme io-passthru /dev/nvme0n1 --opcode=0x7f --namespace-id=1", "0x1"),
        ("nvme get-log /dev/nvme0 --log-id=0x6f --log-len=512", invalid_log),
        ("nvme get-feature /dev/nvme0 -f 0x6f", "0x2"),
    ];
    for (command, status) in cases {
        let answer = guest.attempt(command, LIMIT)?;
        let found = status_in(&answer.text);
        ensure!(
            answer.code != 0 && found.as_deref() == Some(status),
            "`{command}` must end with status {status}, not {found:?}: {answer:?}"
        );
    }
    Ok(())
}

/// Format changes the block size, erases, and the drive serves the new size.
pub fn format(lab: &mut Lab) -> Result<()> {
    let is_evenkeel = lab.is_evenkeel();
    let guest = lab.guest(Tenant::BestEffort)?;
    for lbads in [12, 9] {
        guest.run("dd if=/dev/urandom of=/dev/nvme0n1 bs=1M count=1 oflag=direct")?;
        let namespace = json(guest, &format!("nvme id-ns {NAMESPACE} -o json"))?;
        let index = find_format(&namespace, lbads)?;
        guest.run_within(&format!("nvme format {NAMESPACE} --lbaf={index} --force"), LIMIT)?;

        let namespace = json(guest, &format!("nvme id-ns {NAMESPACE} -o json"))?;
        ensure!(current_format(&namespace)? == (index as u64, lbads), "not formatted: {namespace}");
        let block_bytes = 1u64 << lbads;
        guest.wait_for(
            &format!("blocks of {block_bytes} bytes"),
            &format!("test $(blockdev --getss {NAMESPACE}) = {block_bytes}"),
        )?;
        let seen = guest.run(&format!("blockdev --getsize64 {NAMESPACE}"))?;
        ensure!(seen.trim() == (TENANT_SIZE_MIB << 20).to_string(), "size: {seen}");
        guest.run("cmp -n 1048576 /dev/zero /dev/nvme0n1").context("the format erased nothing")?;
        guest.run_within(
            &format!(
                "fio --name=format --filename={NAMESPACE} --direct=1 --ioengine=libaio --iodepth=16 \
                 --rw=randwrite --bsrange={block_bytes}-64k --size=8m --verify=crc32c --verify_fatal=1"
            ),
            LIMIT,
        )?;
    }
    // QEMU's own controller has no keys.
    if is_evenkeel { erase_by_key(guest) } else { Ok(()) }
}

/// The disk is encrypted: it is offered another key, and finds neither its data nor zeros.
fn erase_by_key(guest: &mut Guest) -> Result<()> {
    let offers = number(&json(guest, "nvme id-ctrl /dev/nvme0 -o json")?, "fna")?;
    ensure!(offers & 4 != 0, "no cryptographic erase is offered: FNA {offers:#x}");
    let offers = number(&json(guest, "nvme id-ctrl /dev/nvme0 -o json")?, "sanicap")?;
    ensure!(offers & 7 == 5, "not crypto erase and overwrite: SANICAP {offers:#x}");
    for erase in [format!("nvme format {NAMESPACE} --ses=2 --force"), "nvme sanitize /dev/nvme0 -a 4".to_owned()] {
        guest.run(&format!(
            "dd if=/dev/urandom of=/tmp/data bs=1M count=1 && dd if=/tmp/data of={NAMESPACE} bs=1M oflag=direct"
        ))?;
        guest.run(&format!("cmp -n 1048576 /tmp/data {NAMESPACE}"))?;
        guest.run_within(&erase, LIMIT)?;
        if erase.contains("sanitize") {
            sanitize::wait_for_status(guest, 1)?;
        }
        for not in ["/tmp/data", "/dev/zero"] {
            guest.run(&format!(
                "dd if={NAMESPACE} of=/tmp/found bs=1M count=1 iflag=direct && ! cmp -n 4096 {not} /tmp/found"
            ))?;
        }
    }
    let log = guest.run("nvme sanitize-log /dev/nvme0")?;
    ensure!(log.contains("65535") && log.contains("0x1"), "nvme-cli reads something else: {log}");
    guest.run("rm /tmp/data /tmp/found").map(drop)
}

fn json(guest: &mut Guest, command: &str) -> Result<Value> {
    let text = guest.run(command)?;
    serde_json::from_str(&text).with_context(|| format!("`{command}` answered:\n{text}"))
}

/// A number of nvme-cli's JSON, which writes the widest ones as text.
fn number(value: &Value, key: &str) -> Result<u64> {
    match &value[key] {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
    .with_context(|| format!("no number {key} in {value}"))
}

/// Index and LBADS (the block size's power of two) of the LBA format in use.
fn current_format(namespace: &Value) -> Result<(u64, u64)> {
    let index = number(namespace, "flbas")? & 0xf;
    let format = &namespace["lbafs"][index as usize];
    Ok((index, number(format, "ds")?))
}

/// The index of the LBA format with blocks of 2^`lbads` bytes and no metadata.
fn find_format(namespace: &Value, lbads: u64) -> Result<usize> {
    namespace["lbafs"]
        .as_array()
        .into_iter()
        .flatten()
        .position(|format| format["ds"] == lbads && format["ms"] == 0)
        .with_context(|| format!("no LBA format of 2^{lbads} bytes: {namespace}"))
}

/// The NVMe status that nvme-cli prints, such as `0x80`, without its do-not-retry bit.
fn status_in(text: &str) -> Option<String> {
    let digits = text.split("(0x").nth(1)?.split(')').next()?;
    let status = u32::from_str_radix(digits, 16).ok()?;
    Some(format!("{:#x}", status & 0x7ff))
}
