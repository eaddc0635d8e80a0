"""Does what `check` says; run by it."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml

KUBERNETES = "1.31"  # the oldest that clabernetes runs on
here = pathlib.Path(sys.argv[1])
loader = importlib.machinery.SourceFileLoader("generate", str(here / "generate"))
sys.dont_write_bytecode = True
generate = importlib.util.module_from_spec(importlib.util.spec_from_loader("generate", loader))
loader.exec_module(generate)
schema = json.loads((here / "topology.schema.json").read_text())
faults = []


def against(place, instance, its_schema):
    for error in jsonschema.Draft202012Validator(its_schema).iter_errors(instance):
        faults.append(f"{place}: {error.json_path}: {error.message}")


def crd():
    """clabernetes' own schema of a Topology, where CRDS says where it is."""
    if not (folder := os.environ.get("CRDS")):
        return None
    definition = yaml.safe_load((pathlib.Path(folder) / "c9s.run_topologies.yaml").read_text())
    own = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    def closed(part):
        # As a server with strict field validation: what the schema does not name is an error.
        if isinstance(part, dict):
            if "properties" in part and "additionalProperties" not in part and "metadata" not in part["properties"]:
                part["additionalProperties"] = False
            for value in part.values():
                closed(value)
        elif isinstance(part, list):
            for value in part:
                closed(value)

    closed(own)
    return own


def topology(place, manifest, files):
    against(place, manifest, schema)
    if own := crd():
        against(f"{place} by its CRD", manifest, own)
    lab = yaml.safe_load(manifest["spec"]["definition"]["containerlab"])["topology"]
    node = schema["$defs"]["node"]
    levels = {"defaults": lab["defaults"], **lab.get("groups", {}), **lab["nodes"]}
    for name, settings in levels.items():
        against(f"{place} {name}", settings or {}, node)
    mounts = manifest["spec"]["deployment"]["filesFromConfigMap"]
    for name, settings in lab["nodes"].items():
        group = lab.get("groups", {}).get(settings.get("group"), {})
        bound = {bind.split(":")[0] for bind in group.get("binds", []) + settings.get("binds", [])}
        mounted = {mount["filePath"] for mount in mounts.get(name, [])}
        if bound != mounted:
            faults.append(f"{place} {name}: binds {sorted(bound)}, but is given {sorted(mounted)}")
        for mount in mounts.get(name, []):
            if mount["configMapPath"] not in files.get(mount["configMapName"], {}):
                faults.append(f"{place} {name}: no file {mount['configMapPath']} in {mount['configMapName']}")
        mode = settings.get("network-mode", "")
        if mode and mode.removeprefix("container:") not in lab["nodes"]:
            faults.append(f"{place} {name}: {mode} names no node")
    for link in lab["links"]:
        for end in link["endpoints"]:
            if end.split(":")[0] not in lab["nodes"]:
                faults.append(f"{place}: a link ends at {end}, which is no node")


def manifests(place, all_of_them):
    files = {}
    for manifest in all_of_them:
        kind = f"{place}: {manifest['kind']} {manifest['metadata']['name']}"
        if manifest["kind"] == "Topology":
            topology(kind, manifest, files)
            continue
        if manifest["kind"] == "ConfigMap":
            files[manifest["metadata"]["name"]] = manifest["data"]
            if len(json.dumps(manifest)) > 1_000_000:
                faults.append(f"{kind}: larger than a ConfigMap may be")
        try:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            faults.append(f"{kind}: {error.message}")


names = sorted(path.name.removesuffix(".clab.yml") for path in generate.FOLDER.glob("*.clab.yml"))
fabrics = [name for name in names if name != "monitoring"]
for name in fabrics:
    manifests(name, generate.generate(name))
others = sorted(here.glob("*.yaml"))
for other in others:
    manifests(other.name, yaml.safe_load_all(other.read_text()))
for fault in faults:
    print(f"FAULT {fault}")
print(f"test result: {'FAILED' if faults else 'ok'}. {len(fabrics) + len(others) if not faults else 0} passed; {len(faults)} failed")
sys.exit(bool(faults))
