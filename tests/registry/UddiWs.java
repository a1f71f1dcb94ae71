import java.net.URL;
import java.util.List;
import java.util.stream.Collectors;
import javax.xml.namespace.QName;
import javax.xml.ws.Service;
import org.uddi.api_v2.*;
import org.uddi.v2_service.Inquire;
import org.uddi.v2_service.Publish;

/** Publishes businesses with a service, finds and relates them, by the stubs of jUDDI's client (JAX-WS). */
public class UddiWs {
    static final String GENERIC = "2.0";

    public static void main(String[] arguments) throws Exception {
        Inquire inquiry = port(Inquire.class, arguments[0] + "/registry/uddi/inquiry", "urn:uddi-org:inquiry_v2");
        Publish publication = port(Publish.class, arguments[0] + "/registry/uddi/publication", "urn:uddi-org:publication_v2");
        GetAuthToken asking = new GetAuthToken();
        asking.setGeneric(GENERIC);
        asking.setUserID("alice");
        asking.setCred("secret");
        String token = publication.getAuthToken(asking).getAuthInfo();

        TModel model = new TModel();
        model.setTModelKey("");
        model.setName(name("queries"));
        SaveTModel savingModel = new SaveTModel();
        savingModel.setGeneric(GENERIC);
        savingModel.setAuthInfo(token);
        savingModel.getTModel().add(model);
        String queries = publication.saveTModel(savingModel).getTModel().get(0).getTModelKey();

        AccessPoint address = new AccessPoint();
        address.setValue("http://data/service");
        address.setURLType(URLType.HTTP);
        TModelInstanceInfo implemented = new TModelInstanceInfo();
        implemented.setTModelKey(queries);
        BindingTemplate binding = new BindingTemplate();
        binding.setBindingKey("");
        binding.setAccessPoint(address);
        binding.setTModelInstanceDetails(new TModelInstanceDetails());
        binding.getTModelInstanceDetails().getTModelInstanceInfo().add(implemented);
        BusinessService service = new BusinessService();
        service.setServiceKey("");
        service.getName().add(name("Sky & sea"));
        service.setBindingTemplates(new BindingTemplates());
        service.getBindingTemplates().getBindingTemplate().add(binding);
        service.setCategoryBag(new CategoryBag());
        service.getCategoryBag().getKeyedReference().add(reference(queries, "sky"));
        SaveBusiness saving = new SaveBusiness();
        saving.setGeneric(GENERIC);
        saving.setAuthInfo(token);
        saving.getBusinessEntity().add(business("Observatory", service));
        saving.getBusinessEntity().add(business("Archive", null));
        List<BusinessEntity> saved = publication.saveBusiness(saving).getBusinessEntity();
        String observatory = saved.get(0).getBusinessKey(), archive = saved.get(1).getBusinessKey();

        FindService finding = new FindService();
        finding.setGeneric(GENERIC);
        finding.setMaxRows(10);
        finding.getName().add(name("sky"));
        finding.setFindQualifiers(new FindQualifiers());
        finding.getFindQualifiers().getFindQualifier().add("sortByNameDesc");
        finding.setTModelBag(new TModelBag());
        finding.getTModelBag().getTModelKey().add(queries);
        ServiceInfo info = inquiry.findService(finding).getServiceInfos().getServiceInfo().get(0);
        System.out.println("service " + info.getName().get(0).getValue());
        GetServiceDetail detail = new GetServiceDetail();
        detail.setGeneric(GENERIC);
        detail.getServiceKey().add(info.getServiceKey());
        BusinessService found = inquiry.getServiceDetail(detail).getBusinessService().get(0);
        AccessPoint bound = found.getBindingTemplates().getBindingTemplate().get(0).getAccessPoint();
        System.out.println("binding " + bound.getURLType().value() + " " + bound.getValue());
        System.out.println("category " + found.getCategoryBag().getKeyedReference().get(0).getKeyValue());

        PublisherAssertion assertion = new PublisherAssertion();
        assertion.setFromKey(observatory);
        assertion.setToKey(archive);
        assertion.setKeyedReference(reference(queries, "parent"));
        AddPublisherAssertions adding = new AddPublisherAssertions();
        adding.setGeneric(GENERIC);
        adding.setAuthInfo(token);
        adding.getPublisherAssertion().add(assertion);
        publication.addPublisherAssertions(adding);
        FindRelatedBusinesses relating = new FindRelatedBusinesses();
        relating.setGeneric(GENERIC);
        relating.setBusinessKey(observatory);
        RelatedBusinessInfo other =
            inquiry.findRelatedBusinesses(relating).getRelatedBusinessInfos().getRelatedBusinessInfo().get(0);
        SharedRelationships shared = other.getSharedRelationships().get(0);
        System.out.println("related " + other.getName().get(0).getValue() + " " + shared.getDirection().value());
        GetAssertionStatusReport reporting = new GetAssertionStatusReport();
        reporting.setGeneric(GENERIC);
        reporting.setAuthInfo(token);
        AssertionStatusItem item = publication.getAssertionStatusReport(reporting).getAssertionStatusItem().get(0);
        System.out.println(item.getCompletionStatus() + " " + item.getKeyedReference().getKeyValue());

        GetRegisteredInfo registering = new GetRegisteredInfo();
        registering.setGeneric(GENERIC);
        registering.setAuthInfo(token);
        System.out.println("registered " + publication.getRegisteredInfo(registering).getBusinessInfos().getBusinessInfo()
            .stream().map(each -> each.getName().get(0).getValue()).sorted().collect(Collectors.joining(" ")));
        detail.getServiceKey().set(0, "00000000-0000-0000-0000-000000000000");
        try {
            inquiry.getServiceDetail(detail);
        } catch (org.uddi.v2_service.DispositionReport refused) {
            System.out.println("refused " + refused.getFaultInfo().getResult().get(0).getErrno());
        }
        DeleteBusiness deleting = new DeleteBusiness();
        deleting.setGeneric(GENERIC);
        deleting.setAuthInfo(token);
        deleting.getBusinessKey().add(observatory);
        System.out.println("deleted " + publication.deleteBusiness(deleting).getResult().get(0).getErrno());
    }

    /** By the WSDL that is served. */
    private static <T> T port(Class<T> kind, String address, String space) throws Exception {
        return Service.create(new URL(address), new QName(space, kind.getSimpleName() + "Service")).getPort(kind);
    }

    private static BusinessEntity business(String called, BusinessService service) {
        BusinessEntity entity = new BusinessEntity();
        entity.setBusinessKey("");
        entity.getName().add(name(called));
        if (service != null) {
            entity.setBusinessServices(new BusinessServices());
            entity.getBusinessServices().getBusinessService().add(service);
        }
        return entity;
    }

    private static Name name(String text) {
        Name name = new Name();
        name.setValue(text);
        return name;
    }

    private static KeyedReference reference(String model, String value) {
        KeyedReference reference = new KeyedReference();
        reference.setTModelKey(model);
        reference.setKeyName("");
        reference.setKeyValue(value);
        return reference;
    }
}
