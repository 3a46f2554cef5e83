"""Signatures: whatever botocore signs is accepted, and whatever is changed afterwards is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from api.sigv4 import SignatureError, SignedRequest, WrongSignature, verify

NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)
SECRETS = {"AKIA1": "secret/one+"}
PATHS = st.lists(st.text(min_size=1, max_size=6).filter(lambda part: part not in {".", ".."}), max_size=3).map(
    lambda parts: "/" + "/".join(quote(part, safe="", errors="replace") for part in parts)
)


VISIBLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
QUERIES = st.lists(st.tuples(VISIBLE, VISIBLE), max_size=3).map(
    lambda pairs: "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs)
)


def signed(
    body: bytes, path: str = "/", query: str = "", *, at: datetime = NOW, service: str = "sagemaker", **more: str
) -> SignedRequest:
    """A request as botocore's client signs it and as it then arrives. ``more`` are headers that it signs as well."""
    url = f"http://127.0.0.1:8600{path}" + (f"?{query}" if query else "")
    headers = {
        "Content-Type": "application/x-amz-json-1.1",
        "X-Amz-Target": "SageMaker.ListClusters",
        "Host": "127.0.0.1:8600",
        **more,
    }
    request = AWSRequest("POST", url, data=body, headers=headers)
    signer = SigV4Auth(Credentials("AKIA1", SECRETS["AKIA1"]), service, "us-east-1")
    request.context["timestamp"] = at.strftime("%Y%m%dT%H%M%SZ")
    signer._modify_request_before_signing(request)
    signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    signer._inject_signature_to_request(request, signature)
    arrived = {name.lower(): value for name, value in request.headers.items()}
    arrived["x-amz-date"] = request.context["timestamp"]
    return SignedRequest("POST", path, query, arrived, body)


def caller_of(request: SignedRequest, now: datetime = NOW) -> str:
    return verify(request, now=now, secret_of=SECRETS.get).access_key_id


@given(body=st.binary(max_size=64), path=PATHS, query=st.sampled_from(["", "a=1", "b=2&a=1", "x=%20y"]))
def test_what_botocore_signs_is_accepted(body, path, query):
    assert caller_of(signed(body, path, query)) == "AKIA1"


@given(query=QUERIES, value=VISIBLE, path=st.lists(st.sampled_from(["a", ".", "..", "", "b%20c"]), max_size=6).map("/".join))
def test_what_has_to_be_folded_is_folded_as_botocore_folds_it(query, value, path):
    assert caller_of(signed(b"{}", f"/{path}", query, **{"X-Amz-Odd": f" {value}  {value} "})) == "AKIA1"


@given(day=st.integers(0, 2), service=st.sampled_from(["sagemaker", "everstep"]))
def test_the_key_of_one_day_and_service_signs_nothing_else(day, service):
    request = signed(b"{}", at=NOW + timedelta(days=day), service=service)
    assert caller_of(request, NOW + timedelta(days=day)) == "AKIA1"
    other = "everstep" if service == "sagemaker" else "sagemaker"
    forged = {**request.headers, "authorization": request.headers["authorization"].replace(f"/{service}/", f"/{other}/")}
    with pytest.raises(WrongSignature, match="does not match the signature"):
        caller_of(SignedRequest("POST", "/", "", forged, b"{}"), NOW + timedelta(days=day))


@given(body=st.binary(max_size=64), other=st.binary(max_size=64))
def test_another_body_is_not(body, other):
    request = signed(body)
    if body != other:
        with pytest.raises(WrongSignature):
            caller_of(SignedRequest("POST", request.path, request.query, request.headers, other))


@given(header=st.text(max_size=200))
def test_no_header_crashes_the_reader(header):
    request = signed(b"")
    with pytest.raises(SignatureError):
        caller_of(SignedRequest("POST", "/", "", {**request.headers, "authorization": header}, b""))


@pytest.mark.parametrize("skew, is_accepted", [(-901, False), (-900, True), (0, True), (900, True), (901, False)])
def test_a_clock_may_be_off_by_fifteen_minutes_and_no_more(skew, is_accepted):
    request = signed(b"{}", at=NOW + timedelta(seconds=skew))
    if is_accepted:
        assert caller_of(request) == "AKIA1"
        return
    with pytest.raises(WrongSignature, match=r"15 min\."):
        caller_of(request)


def test_a_forged_date_reads_as_a_wrong_signature_and_tells_no_time():
    request = signed(b"{}")
    forged = {**request.headers, "x-amz-date": "20310501T000000Z"}
    with pytest.raises(WrongSignature, match="does not match the signature"):
        caller_of(SignedRequest("POST", "/", "", forged, b"{}"))


def test_a_declared_body_hash_must_be_that_of_the_body():
    request = signed(b"{}")
    header = request.headers["authorization"].replace("host;", "host;x-amz-content-sha256;")
    declared = {**request.headers, "authorization": header, "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
    with pytest.raises(WrongSignature, match="x-amz-content-sha256"):
        caller_of(SignedRequest("POST", "/", "", declared, b"{}"))


@pytest.mark.parametrize("host", ["[", "[::1", "a b", "", "x/../y"])
def test_a_malformed_host_is_only_a_wrong_signature(host):
    request = signed(b"{}")
    with pytest.raises(WrongSignature):
        caller_of(SignedRequest("POST", "/", "", {**request.headers, "host": host}, b"{}"))
