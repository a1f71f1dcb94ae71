import java.io.File;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.PrivateKey;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Instant;
import java.util.List;
import java.util.UUID;
import javax.xml.XMLConstants;
import javax.xml.crypto.dom.DOMStructure;
import javax.xml.crypto.dsig.CanonicalizationMethod;
import javax.xml.crypto.dsig.Reference;
import javax.xml.crypto.dsig.SignatureProperties;
import javax.xml.crypto.dsig.SignatureProperty;
import javax.xml.crypto.dsig.Transform;
import javax.xml.crypto.dsig.XMLObject;
import javax.xml.crypto.dsig.XMLSignatureFactory;
import javax.xml.crypto.dsig.dom.DOMSignContext;
import javax.xml.crypto.dsig.keyinfo.KeyInfo;
import javax.xml.crypto.dsig.keyinfo.KeyInfoFactory;
import javax.xml.crypto.dsig.spec.C14NMethodParameterSpec;
import javax.xml.crypto.dsig.spec.TransformParameterSpec;
import javax.xml.parsers.DocumentBuilderFactory;
import javax.xml.transform.TransformerFactory;
import javax.xml.transform.dom.DOMSource;
import javax.xml.transform.stream.StreamResult;
import org.w3c.dom.Document;
import org.w3c.dom.Element;

/** Signs a document, {@code SignDocument FILE KEY(PKCS #8, DER) RSA|EC KEY-ID ALGORITHM TARGET}, and prints it. */
public final class SignDocument {
    private static final String PROPERTIES = "http://www.w3.org/2009/xmldsig-properties";
    private static final String SHA256 = "http://www.w3.org/2001/04/xmlenc#sha256";

    public static void main(String[] arguments) throws Exception {
        DocumentBuilderFactory builders = DocumentBuilderFactory.newInstance();
        builders.setNamespaceAware(true);
        Document document = builders.newDocumentBuilder().parse(new File(arguments[0]));
        PKCS8EncodedKeySpec encoded = new PKCS8EncodedKeySpec(Files.readAllBytes(Path.of(arguments[1])));
        PrivateKey key = KeyFactory.getInstance(arguments[2]).generatePrivate(encoded);

        XMLSignatureFactory factory = XMLSignatureFactory.getInstance("DOM");
        Transform enveloped = factory.newTransform(Transform.ENVELOPED, (TransformParameterSpec) null);
        Transform exclusive =
                factory.newTransform(CanonicalizationMethod.EXCLUSIVE, (TransformParameterSpec) null);
        var digest = factory.newDigestMethod(SHA256, null);
        List<Reference> references = List.of(
                factory.newReference("", digest, List.of(enveloped, exclusive), null, null),
                factory.newReference("#p", digest, List.of(exclusive), null, null));
        var info = factory.newSignedInfo(
                factory.newCanonicalizationMethod(CanonicalizationMethod.EXCLUSIVE, (C14NMethodParameterSpec) null),
                factory.newSignatureMethod(arguments[4], null),
                references);

        // canonicalisation sees the declarations that are attributes, not those that a printer would add
        Element replay = document.createElementNS(PROPERTIES, "dsp:ReplayProtect");
        replay.setAttributeNS(XMLConstants.XMLNS_ATTRIBUTE_NS_URI, "xmlns:dsp", PROPERTIES);
        replay.appendChild(text(document, PROPERTIES, "dsp:timestamp", Instant.now().toString()));
        replay.appendChild(text(document, PROPERTIES, "dsp:nonce", UUID.randomUUID().toString()));
        Element target = text(document, "urn:dai:signature", "target", arguments[5]);
        target.setAttributeNS(XMLConstants.XMLNS_ATTRIBUTE_NS_URI, "xmlns", "urn:dai:signature");
        SignatureProperty property = factory.newSignatureProperty(
                List.of(new DOMStructure(replay), new DOMStructure(target)), "#s", null);
        SignatureProperties properties = factory.newSignatureProperties(List.of(property), "p");
        XMLObject object = factory.newXMLObject(List.of(properties), null, null, null);

        KeyInfoFactory names = factory.getKeyInfoFactory();
        KeyInfo keyInfo = names.newKeyInfo(List.of(names.newKeyName(arguments[3])));
        DOMSignContext context = new DOMSignContext(key, document.getDocumentElement());
        context.setDefaultNamespacePrefix("ds");
        factory.newXMLSignature(info, keyInfo, List.of(object), "s", null).sign(context);

        StringWriter written = new StringWriter();
        TransformerFactory.newInstance().newTransformer()
                .transform(new DOMSource(document), new StreamResult(written));
        System.out.print(written);
    }

    private static Element text(Document document, String namespace, String name, String content) {
        Element element = document.createElementNS(namespace, name);
        element.setTextContent(content);
        return element;
    }
}
